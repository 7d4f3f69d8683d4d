"""Draws scenarios. A program is drawn as a whole and shrinks as a whole: to two ranks, one parameter of one element,
one micro-batch, the identity order, no options. Only what an implementation claims is drawn.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import factorial

from hypothesis import strategies as st

from oracle.formats import FORMATS
from oracle.interpreter import is_exact
from oracle.lattice import reciprocal_error
from oracle.program import AVERAGINGS, Backward, Event, Finish, Parameter, Scenario, Step, ZeroGrad
from properties.claims import Claims

MOST_RANKS = 8
SHAPES = ((1,), (2,), (3,), (2, 2), (), (5,), (1, 3), (7,))
MOST_PARAMETERS = 5
MOST_PHASES = 8


@dataclass(frozen=True)
class RankSeed:
    """What is drawn for one rank: the number of its order, and the set of parameters absent there as bits."""

    order: int
    absent: int


@dataclass(frozen=True)
class Phase:
    """What is drawn for one event. ``twist`` and ``shift`` tell a micro-batch's orders and absences from others'."""

    kind: str
    twist: int
    shift: int


# Ranks and events are drawn apart, each as a list: either shrinks by dropping any element, and the rest keeps its
# meaning.
_RANKS = st.lists(
    st.builds(RankSeed, st.integers(0, factorial(MOST_PARAMETERS) - 1), st.integers(0, 2**MOST_PARAMETERS - 1)),
    min_size=2,
    max_size=MOST_RANKS,
)
_PHASES = st.lists(
    st.builds(
        Phase,
        st.sampled_from(("synchronize", "local", "step", "drop gradients", "zero gradients")),
        st.integers(0, MOST_PARAMETERS),
        st.integers(0, MOST_PARAMETERS),
    ),
    max_size=MOST_PHASES,
)
_ALONE = st.sampled_from((False,) * 7 + (True,))  # one rank: degenerate, and where many a shortcut is wrong
_MODEL = st.lists(
    st.tuples(st.sampled_from(SHAPES), st.booleans(), st.sampled_from((True, True, True, False))),
    min_size=1,
    max_size=MOST_PARAMETERS,
)
_BOOLEANS = st.booleans()
_RATES = st.sampled_from((0.5, 0.25, 1.0))


@st.composite
def parameters(draw: st.DrawFn, claims: Claims, dtypes: tuple[str, ...]) -> tuple[Parameter, ...]:
    """The model: at least one trained parameter; one dtype unless several are claimed."""
    usual, other = dtypes[0], dtypes[-1]
    if draw(_BOOLEANS):
        usual, other = other, usual
    shapes, alike = draw(_MODEL), draw(_BOOLEANS)  # parameters of one size swap silently, of several they crash
    # The first parameter is never the odd one, so that each mixture has one way to be drawn, and shrinks.
    model = [
        Parameter(
            shapes[0][0] if alike else shape, other if odd and index and claims.several_dtypes else usual, trained
        )
        for index, (shape, odd, trained) in enumerate(shapes)
    ]
    if not any(parameter.trainable for parameter in model):
        model[0] = replace(model[0], trainable=True)
    return tuple(model)


def permutation(items: tuple[int, ...], number: int) -> tuple[int, ...]:
    """The permutation of that number, modulo how many there are; 0 is the identity, 1 swaps the last two."""
    left, result = list(items), []
    number %= factorial(len(items))
    for remaining in range(len(items), 0, -1):
        place, number = divmod(number, factorial(remaining - 1))
        result.append(left.pop(place))
    return tuple(result)


def order(rank: RankSeed, phase: Phase, trained: tuple[int, ...], claims: Claims) -> tuple[int, ...]:
    """In which order, and whether, a rank's backward reaches the parameters in a micro-batch."""
    reached = permutation(trained, rank.order * (phase.twist + 1) + phase.twist)
    if claims.unused is None:
        return reached
    absent = rank.absent >> phase.shift
    present = tuple(p for p in reached if not absent >> trained.index(p) & 1)
    return present or reached[:1]  # a rank that uses nothing has no backward to run


def program(
    phases: list[Phase], ranks: list[RankSeed], trained: tuple[int, ...], claims: Claims, hook_orders: str
) -> tuple[Event, ...]:
    """Events in any order that a training loop could have; every micro-batch ends up synchronized."""
    if hook_orders != "any" or not claims.hook_order:
        ranks = [replace(rank, order=ranks[0].order) for rank in ranks]
    events: list[Event] = []
    local = True  # whether a synchronization is due: at first, and after a micro-batch inside no_sync
    for phase in [*phases, Phase("synchronize if due", 0, 0)]:
        if (
            phase.kind == "synchronize"
            or (phase.kind == "local" and claims.accumulation)
            or (phase.kind == "synchronize if due" and local)
        ):
            local = phase.kind == "local"
            events.append(Backward(tuple(order(rank, phase, trained, claims) for rank in ranks), not local))
            events += [] if local else [Finish()]
        elif not local and phase.kind == "step":
            events.append(Step())
        elif not local and phase.kind.endswith("gradients"):
            events.append(ZeroGrad(phase.kind == "drop gradients"))
    return tuple(events)


@st.composite
def scenarios(draw: st.DrawFn, claims: Claims, hook_orders: str = "any") -> Scenario:
    """A scenario within the claims. ``hook_orders``: "any" draws one for each rank, "same on all ranks" one for all."""
    ranks = draw(_RANKS)[: claims.most_ranks]
    if draw(_ALONE):
        ranks = ranks[:1]
    model = draw(parameters(claims, exact_dtypes(len(ranks), claims.averaging)))
    trained = tuple(index for index, parameter in enumerate(model) if parameter.trainable)
    return Scenario(
        len(ranks),
        model,
        program(draw(_PHASES), ranks, trained, claims, hook_orders),
        "quadratic" if draw(_BOOLEANS) else "linear",
        draw(bucket_caps(model)) if claims.bucket_cap else None,
        draw(_RATES),
    )


def exact_scenarios(claims: Claims, hook_orders: str = "any") -> st.SearchStrategy[Scenario]:
    """Scenarios in which nothing rounds, so that every conforming implementation gives the same bits."""
    unused = claims.unused or "untouched"
    return scenarios(claims, hook_orders).filter(lambda scenario: is_exact(scenario, claims.averaging, unused))


@lru_cache
def bucket_caps(model: tuple[Parameter, ...]) -> st.SearchStrategy[int | None]:
    """None, or bytes at and around the sizes of the model's parameters: one bucket, many, and the boundaries."""
    sizes = sorted({parameter.count * FORMATS[parameter.dtype].bytes for parameter in model})
    around = [size + shift for shift in (0, 1, -1) for size in (*sizes, sum(sizes))]
    return st.none() | st.sampled_from(list(dict.fromkeys(around)))


@lru_cache
def exact_dtypes(world_size: int, averaging: str) -> tuple[str, ...]:
    """The dtypes in which the mean over so many ranks can be exact on every lattice.

    Only the rounded reciprocal excludes any, among 1 to 8 ranks float32 with 7: |N * fl(1/N) - 1| > u/2.
    """
    names = ("float32", "float64")
    if averaging != AVERAGINGS[2]:
        return names
    return tuple(
        name for name in names if abs(reciprocal_error(world_size, FORMATS[name])) <= FORMATS[name].unit_roundoff / 2
    )
