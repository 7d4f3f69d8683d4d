"""The pages of the laws: for each its sentence, its reason, published defects that break it, and a counterexample."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path

from lockstep.home import HOME
from lockstep.properties.catalogue import every_text
from lockstep.properties.law import FAMILIES, as_sentence

FOLDER = Path(HOME) / "docs" / "laws"
INDEX = """# Laws

A *law* is a sentence about training that is true for every correct implementation of what it claims. Lockstep draws
programs, runs them, and holds each law against what it sees. The laws come in families, P1 to P21.

Each page below gives, for every law: what it says, why it holds, which published defects break it, and a
*counterexample*: the smallest program on which a known fault breaks the law, as Lockstep reports it. Nobody wrote these
programs by hand. They were drawn at random and made smaller for as long as they still failed.

A law also lists *recipes*: ways to break it that nobody has reported yet. Each fault and each recipe ships as a class
in `impls/faults/`, and a test checks that the law finds it.

`lockstep laws P6` prints the same text in the terminal. `python -m lockstep.properties.pages` writes these pages.

"""
_COUNTEREXAMPLE = "### Counterexample\n\n"


def as_written() -> dict[Path, str]:
    """The text of each page by its path, with the present counterexamples of the pages."""
    kept = counterexamples()
    return {path_of(number): page(number, kept) for number in FAMILIES} | {FOLDER / "index.md": _index()}


def path_of(number: str) -> Path:
    """The page of a family."""
    return FOLDER / f"{number}.md"


def page(number: str, shown: Mapping[str, str]) -> str:
    """The page of a family. ``shown``: the counterexamples by the headings of the laws."""
    parts = [f"# {number}: {FAMILIES[number]}\n"]
    for _, name, says in _texts(number):
        parts.append(f"## {heading(name)}\n\n{_as_markdown(says)}\n")
        if found := shown.get(heading(name)):
            parts.append(f"{_COUNTEREXAMPLE}{found.strip()}\n")
    return "\n".join(parts)


def heading(name: str) -> str:
    """The heading of the law whose test has this name."""
    sentence = as_sentence(name)
    return sentence[0].upper() + sentence[1:]


def counterexamples() -> dict[str, str]:
    """The present counterexamples of the pages, by the headings of their laws."""
    texts = [path.read_text() for path in map(path_of, FAMILIES) if path.is_file()]
    parts = [part.partition("\n") for text in texts for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]]
    return {title: body.partition(_COUNTEREXAMPLE)[2] for title, _, body in parts if _COUNTEREXAMPLE in body}


def _index() -> str:
    """The list of all laws, by families."""
    lines = [INDEX.rstrip("\n")]
    for number, title in FAMILIES.items():
        lines += ["", f"**[{number}: {title}]({number}.md)**", ""]
        lines += [f"- [{as_sentence(name)}]({number}.md#{_anchor(heading(name))})" for _, name, _ in _texts(number)]
    return "\n".join(lines) + "\n"


def _texts(number: str) -> list[tuple[str, str, str]]:
    """Number, name and docstring of each law of a family."""
    return [text for text in every_text() if text[0] == number]


def _anchor(title: str) -> str:
    """The anchor that a heading gets on the site and on GitHub."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _as_markdown(docstring: str) -> str:
    """A law's docstring with links for the issues that it names, and with its reasons and broken examples set apart."""
    text = inspect.cleandoc(docstring)
    text = re.sub(r"^Why: (\w)", lambda found: f"**Why.** {found[1].upper()}", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=[.)])\s+(Broken) ", r"\n\n**\1** ", text)
    return re.sub(r"\b([\w.-]+/[\w.-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", text)
