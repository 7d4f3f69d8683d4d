"""`lockstep laws`: every law in a line, or some of them explained."""

import argparse
import inspect
import textwrap
from collections.abc import Sequence

from lockstep.properties.catalogue import every_text, laws_named
from lockstep.properties.law import as_sentence
from lockstep.properties.reports.paragraphs import fit_the_terminal, width


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the laws."""
    parser.add_argument("law", nargs="*", help="a number, such as P6, or words of its name (default: list all laws)")
    asked = parser.parse_args(arguments)
    fit_the_terminal()
    if not asked.law:
        for number, name, _ in every_text():
            print(f"{number:5}{as_sentence(name)}")
        return
    phrase = " ".join(asked.law)
    chosen = set[str]()
    for words in [phrase] if laws_named(phrase) else asked.law:
        if not (meant := laws_named(words)):
            parser.error(f"{words}: no law has this number or these words in its name; `lockstep laws` lists them")
        chosen |= {*meant}
    for number, name, says in every_text():
        if name not in chosen:
            continue
        print("\n".join(textwrap.wrap(f"{number}  {as_sentence(name)}", width())))
        for paragraph in inspect.cleandoc(says).split("\n\n"):
            told = " ".join(paragraph.split())
            print(textwrap.fill(told, width(), initial_indent=" " * 4, subsequent_indent=" " * 4), end="\n\n")
