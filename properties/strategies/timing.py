"""Choices of the simulated world: the moments at which collectives read and write, and the order of reduction."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.reduction_order import ORDERS, Order, Tree, reduction_order
from lockstep.worlds.contract import Asynchrony, OrderOf

WAIT = Asynchrony("launch", "wait")
# The extremes first, so that a failure shrinks to one of them; drawn moments last.
ASYNCHRONIES: st.SearchStrategy[Asynchrony] = st.one_of(
    st.sampled_from(
        [Asynchrony(reads, writes) for writes in ("wait", "completion") for reads in ("launch", "completion")]
    ),
    st.lists(st.integers(0, 6), min_size=1, max_size=12).map(lambda draws: Asynchrony("drawn", "drawn", tuple(draws))),
)
# The name of an order, or the numbers that determine one.
DRAWN_ORDERS: st.SearchStrategy[str | tuple[int, ...]] = st.sampled_from(ORDERS) | st.lists(
    st.integers(0, 7), min_size=1, max_size=8
).map(tuple)


def order_of(drawn: str | tuple[int, ...]) -> OrderOf:
    """The order of reduction of that name, or the one determined by the numbers. The result can be pickled."""
    return partial(reduction_order, drawn) if isinstance(drawn, str) else partial(order_by_numbers, drawn)


def order_drawn_for(example: str) -> str | tuple[int, ...]:
    """An order of reduction that depends only on the text."""
    drawn = Random(example)
    numbers = tuple(drawn.choices(range(8), k=8))
    return drawn.choice((*ORDERS, numbers))


def order_by_numbers(numbers: Sequence[int], elements: int, element_bytes: int, members: int) -> Order:
    """An order that splits the elements into two pieces, each with its own tree."""
    cut = numbers[0] % (elements + 1)
    pieces = [(0, cut, tree_by_numbers(numbers, members)), (cut, elements, tree_by_numbers(numbers[::-1], members))]
    return [(lo, hi, tree) for lo, hi, tree in pieces if lo < hi]


def tree_by_numbers(numbers: Sequence[int], members: int) -> Tree:
    """A tree of the members 0 .. members - 1. The numbers, repeated as needed, say which two parts are added next."""
    parts: list[Any] = list(range(members))
    for turn in range(members - 1):
        left = parts.pop(numbers[turn % len(numbers)] % len(parts))
        right = parts.pop(numbers[(turn + 1) % len(numbers)] % len(parts))
        parts.append((left, right))
    tree: Tree = parts[0]
    return tree


def asynchrony_words(choice: Asynchrony) -> str:
    """The moments at which collectives read and write, in words."""
    moments = {"launch": "when launched", "completion": "when the last rank has come", "wait": "when waited for"}
    reads, writes = (moments.get(moment, "at a drawn moment") for moment in (choice.reads, choice.writes))
    return f"collectives read {reads} and write {writes}"


def order_words(drawn: str | tuple[int, ...]) -> str:
    """The order of reduction in words."""
    return f"the {drawn} order" if isinstance(drawn, str) else f"an order chosen by {drawn}"
