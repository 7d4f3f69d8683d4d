"""The variants of a case that a compiler turns into different programs: dtypes, destinations, and given options.

On a GPU every combination is compiled separately, which takes a hundred times as long as running it. There a law draws
from a few variants, which contain every pair of values. Interpreted, it draws from all. Lengths, strides, magnitudes
and values cost no compilation and are always drawn freely.
"""

from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

from lockstep.properties.kernels import device

NUMBERS = ("float32", "bfloat16", "float16")
MIXES = (*((each,) for each in NUMBERS), ("float32", "bfloat16"), NUMBERS)
DIVISORS = ((1.0,), (2.0, 64.0), (3.0, 7.0, 61.0))  # none, powers of two, others
FACTORS = (0.25, 0.7, 1.0)
SETTINGS = 3  # the number of settings of optimizers, see `kernels.steps`


@dataclass(frozen=True)
class Variant:
    """The dtypes of a list, the dtype of its bucket, the divisors to draw from, and the use of a coefficient."""

    dtypes: tuple[str, ...]
    bucket: str
    divisors: tuple[float, ...]
    coefficient: bool


@dataclass(frozen=True)
class StepVariant:
    """The dtypes of parameter and gradient, the index of the optimizer's settings, and the use of a coefficient."""

    param: str
    grad: str
    settings: int
    coefficient: bool


FEW = tuple(
    Variant(mix, bucket, DIVISORS[(row + column) % 3], column == row % 3)
    for row, mix in enumerate(MIXES)
    for column, bucket in enumerate(NUMBERS)
)
FEW_STEPS = tuple(
    StepVariant(param, grad, (row + column) % SETTINGS, column == row)
    for row, param in enumerate(NUMBERS)
    for column, grad in enumerate(NUMBERS)
)


@cache
def compiled() -> bool:
    """True if kernels are compiled here, so that few variants are drawn."""
    return device.choose() == "compiled"


@st.composite
def variants(draw: st.DrawFn, few: bool | None = None) -> Variant:
    """A variant for a list. ``few``: draw from few; None: if kernels are compiled."""
    if compiled() if few is None else few:
        return draw(st.sampled_from(FEW))
    whole = tuple(sorted(divisor for kind in DIVISORS for divisor in kind))
    return Variant(NUMBERS, draw(st.sampled_from(NUMBERS)), whole, draw(st.booleans()))


@st.composite
def step_variants(draw: st.DrawFn, few: bool | None = None) -> StepVariant:
    """A variant for an optimizer step."""
    if compiled() if few is None else few:
        return draw(st.sampled_from(FEW_STEPS))
    param, grad = (draw(st.sampled_from(NUMBERS)) for _ in range(2))
    return StepVariant(param, grad, draw(st.integers(0, SETTINGS - 1)), draw(st.booleans()))


@st.composite
def cuts(draw: st.DrawFn, count: int, few: bool | None = None) -> tuple[int, ...]:
    """Up to two places at which a shard is cut: anywhere or, with ``few``, at places with few kinds of alignment."""
    places = st.integers(0, count)
    if compiled() if few is None else few:
        places = places.map(lambda place: min(count, place // 16 * 16 + place % 2))
    return tuple(sorted(draw(st.lists(places, max_size=2))))
