"""The layout of reports: paragraphs with a hanging indent, some with a title, on lines that fit a terminal."""

import textwrap

WIDTH = 119


def entry(title: str, text: str) -> list[str]:
    """A titled paragraph; what follows the title begins in one column with that of other entries."""
    return wrapped(f"{title + ':':11}{text}", " " * 11)


def wrapped(text: str, indent: str) -> list[str]:
    """A paragraph whose further lines are indented; only spaces are broken at, so that names and paths stay whole."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
