"""The schedules of collectives, printed: who sends what to whom in which step, bytes per rank, the order of summation.

``lockstep schedule gloo --ranks 4 --elements 10 --dtype float32``
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from lockstep.oracle import gloo, ring, tree
from lockstep.oracle.collectives import check_counts
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import reduction_order, show
from lockstep.oracle.ring import Message

# Schedule -> the name of its order in `oracle.reduction_order`, None where nothing is summed.
ORDER_OF: dict[str, str | None] = {
    "ring": "ring",
    "ring reduce-scatter": "ring reduce-scatter",
    "ring all-gather": None,
    "tree": "binary tree",
    "gloo": "gloo",
}
RECEIVER = {"reduce-scatter": "adds", "reduce": "adds", "all-gather": "overwrites", "broadcast": "overwrites"}


def schedule(name: str, elements: int, element_bytes: int, world_size: int) -> tuple[list[Message], list[int]]:
    """The messages of the named schedule, one of ``ORDER_OF``, and the elements of each chunk."""
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
        case "gloo":
            bounds = gloo.chunk_bounds(elements, element_bytes, world_size)
            return gloo.all_reduce_schedule(elements, element_bytes, world_size), [hi - lo for lo, hi in bounds]
    raise ValueError(f"unknown schedule {name!r}: it must be one of {', '.join(ORDER_OF)}")


def bytes_sent(messages: Sequence[Message], element_bytes: int, world_size: int) -> list[int]:
    """By rank, over all messages."""
    sent = [0] * world_size
    for message in messages:
        sent[message.sender] += message.elements * element_bytes
    return sent


def title(name: str, elements: int, dtype: str, world_size: int) -> str:
    """The named schedule in a line."""
    what = name if "-" in name else f"{name} all-reduce"
    return f"{what} of {elements} {dtype} elements on {world_size} ranks"


def show_schedule(name: str, elements: int, dtype: str, world_size: int) -> str:
    """The named schedule as text, a line for each step. ``r0 -(2)-> r1``: rank 0 sends chunk 2 to rank 1."""
    if dtype not in FORMATS:
        raise ValueError(f"a dtype is one of {', '.join(FORMATS)}, not {dtype!r}")
    element_bytes = FORMATS[dtype].bytes
    messages, sizes = schedule(name, elements, element_bytes, world_size)
    bounds = enumerate(pairwise(accumulate(sizes, initial=0)))
    lines = [
        title(name, elements, dtype, world_size),
        "chunks: " + "  ".join(f"({chunk}) [{lo},{hi})" for chunk, (lo, hi) in bounds),
    ]
    for phase in dict.fromkeys(message.phase for message in messages):
        lines += [f"{phase}: the receiver {RECEIVER[phase]}", *_steps([m for m in messages if m.phase == phase])]
    lines += ["messages and bytes sent:"]
    for rank, sent in enumerate(bytes_sent(messages, element_bytes, world_size)):
        lines.append(f"  r{rank}  {sum(message.sender == rank for message in messages)} messages, {sent} bytes")
    if (order := ORDER_OF[name]) is not None:
        lines += ["order of summation:"]
        trees = show(reduction_order(order, elements, element_bytes, world_size))
        lines += [f"  {line}" for line in trees.splitlines()]
    return "\n".join(lines)


def _steps(messages: Sequence[Message]) -> list[str]:
    steps: dict[int, list[str]] = {}
    for message in messages:
        steps.setdefault(message.step, []).append(f"r{message.sender} -({message.chunk})-> r{message.receiver}")
    return [f"  step {step}:  " + "   ".join(sends) for step, sends in steps.items()]
