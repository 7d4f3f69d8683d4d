"""`lockstep laws`: every law in a line, or some of them explained."""

import argparse
import inspect
import textwrap
from collections.abc import Sequence

from lockstep.properties.catalogue import every_kernel_law, every_law
from lockstep.properties.law import as_sentence

WIDTH = 100


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the laws."""
    parser.add_argument("law", nargs="*", help="a number, such as P6, or words of a law's name; none: all, a line each")
    asked = parser.parse_args(arguments)
    told = laws()
    if not asked.law:
        for number, name, _ in told:
            print(f"{number:5}{as_sentence(name)}")
        return
    phrase = " ".join(asked.law)
    for words in [phrase] if _meant(phrase, told) else asked.law:
        if not _meant(words, told):
            parser.error(f"{words}: no law has this number or these words in its name; `lockstep laws` lists them")
    chosen = _meant(phrase, told) or [each for each in told if any(each in _meant(words, told) for words in asked.law)]
    for number, name, says in chosen:
        print("\n".join(textwrap.wrap(f"{number}  {as_sentence(name)}", WIDTH)))
        print(textwrap.indent(inspect.cleandoc(says), "    "), end="\n\n")


def _meant(words: str, told: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The laws with this number, or with these words in their names."""
    named = "_".join(words.lower().split())
    return [each for each in told if words.upper() == each[0] or named in each[1]]


def laws() -> list[tuple[str, str, str]]:
    """Of each law its number, the name of its test and its docstring."""
    told = [(law.number, law.name, law.says) for law in every_law().values()]
    told += [("P17", name, test.__doc__ or "") for name, test in every_kernel_law().items()]
    return sorted(told, key=lambda each: int(each[0][1:]))
