"""The core language: every small program, in the order of size.

A program has 2 or 3 ranks, 1 to 3 float32 parameters, and up to 4 events. The events are: micro-batches that
synchronize, each with its Finish; micro-batches inside `no_sync`; setting gradients to None or to zero; clipping;
steps. In each micro-batch each rank uses at least one parameter, in any order. There may be a bucket cap of any number
of elements, up to all of them. The sizes of the parameters have no gap: 1 and 1 element, or 1 and 2, but not 2 and 2.

The *size* of a program is the number of its parts:

    1 for each element of its parameters        1 for each event
    1 for a bucket cap, if it has one           1 for each parameter that a rank uses in a micro-batch

Events come in any order that a training loop may have (`oracle.well_formed`), with two further rules. Clipping, and
setting gradients to None or zero, require gradients. After the last event the ranks must be observed.

One symmetry is used: the name of a parameter means only its place in the order of registration. So only models that
register their parameters in the order a, b, c are included, as any other is one of these with other names. No other
symmetry is used, since an implementation may break it:

    ranks       rank 0 may be a source, the last rank may own a remainder, neighbours may send to one another
    parameters  buckets follow the order of registration, which exchanging two parameters of one size reverses
    caps        each number of elements is the sum of the sizes of some parameters, so no two caps have the same effect
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import perm

from lockstep.oracle.events import Backward, Clip, Event, Finish, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario

RANKS = (2, 3)
MOST_PARAMETERS, MOST_EVENTS = 3, 4
LEAST = 4  # parts: one element, one micro-batch, and its use by two ranks
CAP_UNIT = 4  # bytes of an element
MAX_NORM = 0.25  # below the norm of any non-zero gradients, so that these are clipped

# The events by letter. A micro-batch that synchronizes (b) or is inside `no_sync` (l) also needs its orders.
SYNCHRONIZED, LOCAL, DROP, ZERO, CLIP, STEP = "b", "l", "d", "z", "c", "s"
_PLAIN: dict[str, Event] = {DROP: ZeroGrad(), ZERO: ZeroGrad(set_to_none=False), CLIP: Clip(MAX_NORM), STEP: Step()}
_SHOWN = (SYNCHRONIZED, CLIP, STEP)

Orders = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, order=True)
class Shape:
    """A program without the choice of parameters that its ranks use.

    ``events``: a letter for each. ``sizes``: the elements of each parameter. ``cap``: in elements; 0 for none.
    ``uses``: the number of used parameters, summed over ranks and micro-batches.
    """

    events: str
    ranks: int
    sizes: tuple[int, ...]
    cap: int
    uses: int

    @property
    def size(self) -> int:
        """The number of parts."""
        return sum(self.sizes) + len(self.events) + self.uses + (self.cap > 0)

    @property
    def slots(self) -> int:
        """The number of orders in a program of this shape: one for each rank and micro-batch."""
        return self.ranks * sum(letter in (SYNCHRONIZED, LOCAL) for letter in self.events)

    @property
    def count(self) -> int:
        """The number of programs of this shape."""
        return ways(self.slots, len(self.sizes), self.uses)

    def orders(self) -> Iterator[Orders]:
        """The orders of each program of this shape. Each is a tuple by micro-batch, then by rank."""
        return _shared_out(self.slots, len(self.sizes), self.uses)

    def scenario(self, orders: Orders, probe: str = "linear", wire: str = "") -> Scenario:
        """The program of this shape with these orders."""
        left = iter(orders)
        program: list[Event] = []
        for letter in self.events:
            if letter in _PLAIN:
                program.append(_PLAIN[letter])
            else:
                program.append(Backward(tuple(itertools.islice(left, self.ranks)), synchronize=letter != LOCAL))
                program += [Finish()] * (letter == SYNCHRONIZED)
        return Scenario(
            self.ranks,
            tuple(Parameter((size,)) for size in self.sizes),
            tuple(program),
            probe=probe,
            bucket_cap=self.cap * CAP_UNIT if self.cap else None,
            wire=wire,
        )


def size_of(scenario: Scenario) -> int | None:
    """The size of a scenario, whatever its data and options; None if it is no program of the core language."""
    letters = {repr(event): letter for letter, event in _PLAIN.items()}
    events, orders = "", list[tuple[int, ...]]()
    for event in scenario.program:
        if isinstance(event, Backward):
            events, orders = events + (SYNCHRONIZED if event.synchronize else LOCAL), [*orders, *event.orders]
        elif isinstance(event, Clip):
            events += CLIP
        elif not isinstance(event, Finish):
            events += letters.get(repr(event), "?")
    sizes, cap = tuple(parameter.count for parameter in scenario.parameters), scenario.bucket_cap
    if events not in _words() or scenario.world_size not in RANKS or sizes not in models():
        return None
    if cap is not None and not (cap % CAP_UNIT == 0 and 0 < cap <= sum(sizes) * CAP_UNIT):
        return None
    shape = Shape(events, scenario.world_size, sizes, (cap or 0) // CAP_UNIT, sum(map(len, orders)))
    plain = shape.scenario(tuple(orders), scenario.probe) if len(orders) == shape.slots else None
    return shape.size if plain == scenario else None


@cache
def models() -> tuple[tuple[int, ...], ...]:
    """The sizes of the parameters of each model: all combinations without a gap."""
    numbers = range(1, MOST_PARAMETERS + 1)
    some = (sizes for count in numbers for sizes in itertools.product(numbers, repeat=count))
    return tuple(sizes for sizes in some if {*sizes} == {*range(1, max(sizes) + 1)})


@cache
def _words() -> tuple[str, ...]:
    """The events of each program, as words of letters, the shortest first."""
    found, begun = list[str](), [("", False, False)]
    while begun:
        begun = [longer for word in begun for longer in _longer(*word) if len(longer[0]) <= MOST_EVENTS]
        found += [word for word, _, local in begun if word[-1] in _SHOWN and not local and {*word} & {"b", "l"}]
    return tuple(found)


def _longer(word: str, gradients: bool, local: bool) -> Iterator[tuple[str, bool, bool]]:
    """The word with one event more. The flags: there are gradients; some gradients are not synchronized yet."""
    yield word + SYNCHRONIZED, True, False
    yield word + LOCAL, True, True
    if gradients:
        yield word + DROP, False, False
        yield word + ZERO, True, local
    if gradients and not local:
        yield word + CLIP, True, False
    if not local:
        yield word + STEP, gradients, False


@cache
def _frames() -> tuple[tuple[Shape, int, int], ...]:
    """Each shape without its uses, with its size and its slots; fewer events, ranks and parameters come first."""
    some = itertools.product(_words(), RANKS, models())
    frames = [Shape(*each, cap, 0) for each in some for cap in range(sum(each[-1]) + 1)]
    frames.sort(key=lambda shape: (len(shape.events), shape.ranks, len(shape.sizes), shape))
    return tuple((shape, shape.size, shape.slots) for shape in frames)


def shapes(size: int) -> Iterator[Shape]:
    """The shapes of exactly this size, in order."""
    for frame, bare, slots in _frames():
        uses = size - bare
        if slots <= uses <= slots * len(frame.sizes):
            yield replace(frame, uses=uses)


@cache
def up_to(size: int) -> tuple[Shape, ...]:
    """All shapes up to this size, the smallest first."""
    return tuple(itertools.chain.from_iterable(map(shapes, range(LEAST, size + 1))))


def count(size: int) -> int:
    """The number of programs up to this size."""
    return sum(shape.count for shape in up_to(size))


def programs(size: int, begin: int = 0, end: int | None = None) -> Iterator[tuple[Shape, Orders]]:
    """The programs up to this size with numbers from ``begin`` to before ``end``, the smallest first."""
    begin, left = begin, None if end is None else end - begin
    for shape in up_to(size):
        if begin >= shape.count:
            begin -= shape.count
            continue
        for orders in itertools.islice(shape.orders(), begin, None):
            if left == 0:
                return
            left = None if left is None else left - 1
            yield shape, orders
        begin = 0


@cache
def ways(slots: int, parameters: int, uses: int) -> int:
    """The number of ways in which the slots can use so many parameters in all, each at least one, in any order."""
    if slots == 0:
        return int(uses == 0)
    most = min(parameters, uses)
    return sum(perm(parameters, here) * ways(slots - 1, parameters, uses - here) for here in range(1, most + 1))


def _shared_out(slots: int, parameters: int, uses: int) -> Iterator[Orders]:
    """Each of these ways. The order of registration comes first."""
    if slots == 0:
        if uses == 0:
            yield ()
        return
    most = min(parameters, uses - (slots - 1))
    for here in range(1, most + 1):
        if uses - here <= (slots - 1) * parameters:
            for first in _ordered(parameters, here):
                for rest in _shared_out(slots - 1, parameters, uses - here):
                    yield (first, *rest)


@cache
def _ordered(parameters: int, length: int) -> Sequence[tuple[int, ...]]:
    return tuple(itertools.permutations(range(parameters), length))
