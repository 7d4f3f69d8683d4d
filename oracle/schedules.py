"""The schedules of collectives, printed: who sends what to whom in which step, bytes per rank, the order of summation.

``lockstep schedule gloo --ranks 4 --elements 10 --dtype float32``
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from lockstep.oracle import gloo, hierarchical, ring, tree
from lockstep.oracle.collectives import check_counts
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import Order, reduction_order, show
from lockstep.oracle.ring import Message

SCHEDULES = ("ring", "ring reduce-scatter", "ring all-gather", "tree", "hierarchical", "gloo")
NODE = 2  # ranks per node of the hierarchical all-reduce, unless told otherwise
RECEIVER = {"reduce-scatter": "adds", "reduce": "adds", "all-gather": "overwrites", "broadcast": "overwrites"}


def schedule(
    name: str, elements: int, element_bytes: int, world_size: int, node: int = NODE
) -> tuple[list[Message], list[int]]:
    """The messages of the named schedule, one of ``SCHEDULES``, and the elements of each chunk.

    ``node``: ranks per node, of the hierarchical one only.
    """
    check_counts(elements, world_size)
    sizes = ring.chunk_sizes(elements, world_size)
    match name:
        case "ring":
            return ring.reduce_scatter_schedule(sizes) + ring.all_gather_schedule(sizes), sizes
        case "ring reduce-scatter":
            return ring.reduce_scatter_schedule(sizes, shift=1), sizes
        case "ring all-gather":
            return ring.all_gather_schedule(sizes, shift=1), sizes
        case "tree":
            both = tree.reduce_schedule(elements, world_size) + tree.broadcast_schedule(elements, world_size)
            return both, [elements]
        case "hierarchical":
            messages = hierarchical.all_reduce_schedule(elements, world_size, node)
            return messages, ring.chunk_sizes(elements, node)
        case "gloo":
            bounds = gloo.chunk_bounds(elements, element_bytes, world_size)
            return gloo.all_reduce_schedule(elements, element_bytes, world_size), [hi - lo for lo, hi in bounds]
    raise ValueError(f"unknown schedule {name!r}: it must be one of {', '.join(SCHEDULES)}")


def summation_order(name: str, elements: int, element_bytes: int, world_size: int, node: int = NODE) -> Order | None:
    """The order in which the named schedule adds the ranks' values; None if it adds nothing."""
    match name:
        case "ring all-gather":
            return None
        case "hierarchical":
            return hierarchical.summation_order(elements, world_size, node)
        case "tree":
            return reduction_order("binary tree", elements, element_bytes, world_size)
    return reduction_order(name, elements, element_bytes, world_size)


def bytes_sent(messages: Sequence[Message], element_bytes: int, world_size: int) -> list[int]:
    """By rank, over all messages."""
    sent = [0] * world_size
    for message in messages:
        sent[message.sender] += message.elements * element_bytes
    return sent


def title(name: str, elements: int, dtype: str, world_size: int, node: int = NODE) -> str:
    """The named schedule in a line."""
    what = name if "-" in name else f"{name} all-reduce"
    nodes = f", {node} per node" if name == "hierarchical" else ""
    return f"{what} of {elements} {dtype} elements on {world_size} ranks{nodes}"


def show_schedule(name: str, elements: int, dtype: str, world_size: int, node: int = NODE) -> str:
    """The named schedule as text, a line for each step.

    ``r0 -(2)-> r1``: rank 0 sends chunk 2 to rank 1. ``r0 -(2.1)-> r4``: it sends piece 1 of chunk 2.
    """
    if dtype not in FORMATS:
        raise ValueError(f"a dtype is one of {', '.join(FORMATS)}, not {dtype!r}")
    element_bytes = FORMATS[dtype].bytes
    messages, sizes = schedule(name, elements, element_bytes, world_size, node)
    bounds = list(pairwise(accumulate(sizes, initial=0)))
    lines = [
        title(name, elements, dtype, world_size, node),
        "chunks: " + "  ".join(f"({chunk}) [{lo},{hi})" for chunk, (lo, hi) in enumerate(bounds)),
    ]
    if name == "hierarchical":
        cuts = [(chunk, lo, ring.chunk_sizes(hi - lo, world_size // node)) for chunk, (lo, hi) in enumerate(bounds)]
        pieces = [
            f"({chunk}.{piece}) [{lo},{hi})"
            for chunk, start, cut in cuts
            for piece, (lo, hi) in enumerate(pairwise(accumulate(cut, initial=start)))
        ]
        lines.append("pieces of chunks, between nodes: " + "  ".join(pieces))
    for phase in dict.fromkeys(message.phase for message in messages):
        does = RECEIVER[phase.split()[0]]
        lines += [f"{phase}: the receiver {does}", *_steps([m for m in messages if m.phase == phase])]
    lines += ["messages and bytes sent:"]
    between = [message for message in messages if message.sender // node != message.receiver // node]
    out = bytes_sent(between, element_bytes, world_size)
    for rank, sent in enumerate(bytes_sent(messages, element_bytes, world_size)):
        crossing = f", {out[rank]} of them to another node" if name == "hierarchical" else ""
        lines.append(
            f"  r{rank}  {sum(message.sender == rank for message in messages)} messages, {sent} bytes{crossing}"
        )
    if (order := summation_order(name, elements, element_bytes, world_size, node)) is not None:
        lines += ["order of summation:", *(f"  {line}" for line in show(order).splitlines())]
    return "\n".join(lines)


def _steps(messages: Sequence[Message]) -> list[str]:
    steps: dict[int, list[str]] = {}
    for message in messages:
        steps.setdefault(message.step, []).append(f"r{message.sender} -({message.carries})-> r{message.receiver}")
    return [f"  step {step}:  " + "   ".join(sends) for step, sends in steps.items()]
