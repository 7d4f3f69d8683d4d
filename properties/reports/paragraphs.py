"""The layout of reports: paragraphs with a hanging indent, some with a title, on lines that fit a terminal."""

import os
import re
import shutil
import sys
import textwrap

WIDTH, LEAST = 119, 79  # characters of a line, and of one in a narrow terminal
DEEP = 16  # characters of an indent
NARROW = "LOCKSTEP_WIDTH"  # an environment variable, so that all processes of a run have it


def fit_the_terminal() -> None:
    """Set the length of report lines to the terminal's width, from `LEAST` to `WIDTH`.

    Without a terminal it is `WIDTH`.
    """
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns - 1
        os.environ.setdefault(NARROW, str(min(WIDTH, max(LEAST, columns))))


def width() -> int:
    """The number of characters of a line."""
    return int(os.environ.get(NARROW, WIDTH))


def entry(title: str, text: str) -> list[str]:
    """A titled paragraph; the text of every entry begins in the same column."""
    return wrapped(f"{title + ':':11}{text}", " " * 11)


def command_entry(title: str, command: str) -> list[str]:
    """A titled command. Continued lines end in a backslash, so that it can be copied to a shell."""
    *lines, last = wrapped(f"{title + ':':11}{command}", " " * 11, spare=2)
    return [*(f"{line} \\" for line in lines), last]


def wrapped(text: str, indent: str, spare: int = 0) -> list[str]:
    """A paragraph with indented further lines. It is broken only at spaces, so that names and paths stay whole.

    ``spare``: the characters that stay free at the end of each line.
    """
    room = width() - spare
    return textwrap.wrap(text, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def fitted_parts(line: str) -> str:
    """A line of parts with two spaces or more between them, such as "step 0:  a   b", that is broken only there for a
    terminal, and whole where there is none. Its further lines begin below the first part if there is room.
    """
    head, colon, rest = line.partition(": ")
    if NARROW not in os.environ or len(line) <= width() or not colon:
        return line
    before = len(head) + len(rest) - len(rest.lstrip()) + 2
    first, *parts = re.split(r"( {2,})", rest.lstrip())
    lines = [line[:before] + first]
    for gap, part in zip(parts[::2], parts[1::2], strict=True):
        if len(lines[-1]) + len(gap) + len(part) > width():
            lines.append(" " * (before if before <= DEEP else 4) + part)
        else:
            lines[-1] += gap + part
    return "\n".join(lines)


def fitted(line: str) -> str:
    """A line, wrapped if there is a terminal."""
    return "\n".join(wrapped(line, " " * 4)) if NARROW in os.environ else line
