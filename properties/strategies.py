"""Draws scenarios. A program is drawn as a whole and shrinks as a whole: to two ranks, one parameter of one element, one
micro-batch, the identity order, no options. Only what an implementation claims is drawn.
"""

from dataclasses import replace
from functools import lru_cache
from math import factorial

from hypothesis import strategies as st

from oracle.formats import FORMATS
from oracle.interpreter import is_exact
from oracle.lattice import reciprocal_error
from oracle.program import AVERAGINGS, Backward, Event, Finish, Parameter, Scenario, Step, ZeroGrad
from properties.claims import Claims

WORLD_SIZES = (2, 3, 1, 4, 5, 6, 7, 8)
SHAPES = ((1,), (2,), (3,), (2, 2), (), (5,), (1, 3), (7,))
MOST_PARAMETERS = 5


@lru_cache
def _any_parameter(dtypes: tuple[str, ...]) -> st.SearchStrategy[Parameter]:
    trainable = st.sampled_from((True, True, True, False))
    return st.builds(Parameter, st.sampled_from(SHAPES), st.sampled_from(dtypes), trainable)


@st.composite
def parameters(draw: st.DrawFn, claims: Claims, dtypes: tuple[str, ...]) -> tuple[Parameter, ...]:
    """The model: at least one trained parameter; one dtype unless several are claimed."""
    if not claims.several_dtypes:
        dtypes = (draw(st.sampled_from(dtypes)),)
    model = draw(st.lists(_any_parameter(dtypes), min_size=1, max_size=MOST_PARAMETERS))
    if not any(parameter.trainable for parameter in model):
        model[0] = replace(model[0], trainable=True)
    return tuple(model)


@lru_cache
def orders(trained: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """The orders of some parameters, drawn as one number each: 0 is the identity, to which it shrinks."""
    return st.integers(0, factorial(len(trained)) - 1).map(lambda number: permutation(trained, number))


def permutation(items: tuple[int, ...], number: int) -> tuple[int, ...]:
    """The permutation of that number, in lexicographic order of positions."""
    left, result = list(items), []
    for remaining in range(len(items), 0, -1):
        place, number = divmod(number, factorial(remaining - 1))
        result.append(left.pop(place))
    return tuple(result)


@lru_cache
def _absences(trained: tuple[int, ...], world_size: int) -> st.SearchStrategy[list[int]]:
    """For the first ranks, a set of parameters that take no part, as the bits of a number."""
    return st.lists(st.integers(0, 2 ** len(trained) - 1), max_size=world_size)


@st.composite
def backwards(
    draw: st.DrawFn, claims: Claims, trained: tuple[int, ...], world_size: int, hook_orders: str, synchronize: bool
) -> Backward:
    """One micro-batch: for every rank an order, and, where that is claimed, parameters that take no part."""
    if hook_orders == "any" and claims.hook_order:
        drawn = [draw(orders(trained)) for _ in range(world_size)]
    else:
        drawn = [draw(orders(trained))] * world_size
    if claims.unused is not None:
        for rank, absent in enumerate(draw(_absences(trained, world_size))):
            # A rank uses at least one parameter: without any there is no backward to call.
            present = tuple(p for p in drawn[rank] if not absent >> trained.index(p) & 1)
            drawn[rank] = present or drawn[rank][:1]
    return Backward(tuple(drawn), synchronize)


_LISTS_OF_PHASES = st.lists(
    st.sampled_from(("synchronize", "local", "step", "drop gradients", "zero gradients")), max_size=8
)


@st.composite
def programs(
    draw: st.DrawFn, claims: Claims, trained: tuple[int, ...], world_size: int, hook_orders: str
) -> tuple[Event, ...]:
    """Events in any order that a training loop could have; every micro-batch ends up synchronized."""
    phases = draw(_LISTS_OF_PHASES)
    program: list[Event] = []
    local = False
    for phase in [*phases, "synchronize"] if "synchronize" not in phases[-1:] else phases:
        if phase in ("synchronize", "local"):
            synchronize = phase == "synchronize"
            if not synchronize and not claims.accumulation:
                continue
            program.append(draw(backwards(claims, trained, world_size, hook_orders, synchronize)))
            local = not synchronize
            if synchronize:
                program.append(Finish())
        elif program and not local:
            program.append(Step() if phase == "step" else ZeroGrad(phase == "drop gradients"))
    return tuple(program)


@st.composite
def scenarios(draw: st.DrawFn, claims: Claims, hook_orders: str = "any", probe: str | None = None) -> Scenario:
    """A scenario on the exact tier for the claimed way of averaging.

    ``hook_orders``: "any" draws one for each rank, "same on all ranks" one for all.
    """
    world_size = draw(st.sampled_from(WORLD_SIZES))
    model = draw(parameters(claims, exact_dtypes(world_size, claims.averaging)))
    trained = tuple(index for index, parameter in enumerate(model) if parameter.trainable)
    scenario = Scenario(
        world_size,
        model,
        draw(programs(claims, trained, world_size, hook_orders)),
        probe or draw(st.sampled_from(("linear", "quadratic"))),
        draw(bucket_caps(model)) if claims.bucket_cap else None,
        draw(st.sampled_from((0.5, 0.25, 1.0))),
    )
    return scenario


def exact_scenarios(claims: Claims, hook_orders: str = "any") -> st.SearchStrategy[Scenario]:
    """Scenarios in which nothing rounds, so that every conforming implementation gives the same bits."""
    return scenarios(claims, hook_orders).filter(lambda scenario: is_exact(scenario, claims.averaging))


@lru_cache
def bucket_caps(model: tuple[Parameter, ...]) -> st.SearchStrategy[int | None]:
    """None, or bytes at and around the sizes of the model's parameters: one bucket, many, and the boundaries."""
    sizes = {parameter.count * FORMATS[parameter.dtype].bytes for parameter in model}
    around = {size + shift for size in (*sizes, sum(sizes)) for shift in (-1, 0, 1)}
    return st.none() | st.sampled_from(sorted(cap for cap in around if cap > 0))


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

