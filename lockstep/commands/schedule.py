"""`lockstep schedule`: the messages of an all-reduce algorithm, in words and as a picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.schedules import NODE, SCHEDULES, schedule, show_schedule, title
from lockstep.pictures import messages as pictures
from lockstep.properties.reports.paragraphs import fit_the_terminal, fitted_parts


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the schedule that the command line names, and write its picture where that is asked for."""
    add = parser.add_argument
    add("name", choices=SCHEDULES, metavar="NAME", help=f"one of: {', '.join(SCHEDULES)}")
    add("--ranks", metavar="N", type=int, default=4, help="world size (default: 4)")
    add("--node", metavar="N", type=int, help=f"ranks per node, of the hierarchical one (default: {NODE})")
    add("--elements", metavar="N", type=int, default=10, help="length of the tensor (default: 10)")
    add("--dtype", choices=list(FORMATS), default="float32", help="of the tensor (default: float32)")
    add("--svg", metavar="FILE", help="write the messages as a picture")
    add("--html", metavar="FILE", help="write a page with the picture and the text")
    asked = parser.parse_args(arguments)
    nodes = asked.name == "hierarchical"
    if asked.node is not None and not nodes:
        parser.error(f"--node {asked.node}: only the hierarchical schedule has nodes")
    node = NODE if asked.node is None else asked.node
    try:
        text = show_schedule(asked.name, asked.elements, asked.dtype, asked.ranks, node)
    except ValueError as error:
        parser.error(str(error))
    fit_the_terminal()
    print("\n".join(map(fitted_parts, text.splitlines())))
    size = FORMATS[asked.dtype].bytes
    messages, _ = schedule(asked.name, asked.elements, size, asked.ranks, node)
    drawn = messages, asked.ranks, size, node if nodes else None
    named = title(asked.name, asked.elements, asked.dtype, asked.ranks, node)
    if asked.svg:
        Path(asked.svg).write_text(pictures.svg(named, *drawn), "utf-8")
    if asked.html:
        Path(asked.html).write_text(pictures.page(named, text, *drawn), "utf-8")
