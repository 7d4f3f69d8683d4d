"""`lockstep schedule`: the messages of an all-reduce algorithm, in words and as a picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.schedules import ORDER_OF, schedule, show_schedule, title
from lockstep.pictures import messages as pictures


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the schedule that the command line names, and write its picture where that is asked for."""
    add = parser.add_argument
    add("name", choices=list(ORDER_OF), metavar="NAME", help=f"one of: {', '.join(ORDER_OF)}")
    add("--ranks", metavar="N", type=int, default=4, help="world size (default: 4)")
    add("--elements", metavar="N", type=int, default=10, help="length of the tensor (default: 10)")
    add("--dtype", choices=list(FORMATS), default="float32", help="of the tensor (default: float32)")
    add("--svg", metavar="FILE", help="write the messages as a picture")
    add("--html", metavar="FILE", help="write a page with the picture and the text")
    asked = parser.parse_args(arguments)
    try:
        text = show_schedule(asked.name, asked.elements, asked.dtype, asked.ranks)
    except ValueError as error:
        parser.error(str(error))
    print(text)
    size = FORMATS[asked.dtype].bytes
    messages, _ = schedule(asked.name, asked.elements, size, asked.ranks)
    drawn = title(asked.name, asked.elements, asked.dtype, asked.ranks), messages, asked.ranks, size
    if asked.svg:
        Path(asked.svg).write_text(pictures.svg(*drawn), "utf-8")
    if asked.html:
        Path(asked.html).write_text(pictures.page(drawn[0], text, *drawn[1:]), "utf-8")
