"""The needs of a program: the names of everything that it has and the plainest program lacks. Causes consist of needs.

Named features come first, see `properties.strategies.features`. Further needs name the fields that differ from their
defaults, and the counts of ranks, parameters and the like. So any two programs that differ in kind have different
needs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from typing import Any

from lockstep.oracle.events import Backward, Finish, Freeze, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import hook_orders_differ, on_averages, several_at_once
from lockstep.properties.exercise import Exercise
from lockstep.properties.models.scenario import BUFFERED, ModelScenario
from lockstep.properties.strategies.features import FEATURES

FREEZES = {"freeze", "Freeze"}  # needs of programs that freeze a parameter, but not of those that only train one again
# Features that lead to the same state, here a frozen parameter. A class that fails in one manner with either of them
# has one defect.
ALTERNATIVES = (frozenset({"frozen parameters", "freeze"}),)
AGAIN = "parameters that are trained again"
# A parameter that was frozen from the start is trained again at once. One that an event froze is trained again only
# after gradients were zeroed.
BEFORE_AGAIN = frozenset({"frozen parameters", "freeze", "zero grad"})
COUNTED = {"rank", "parameter", "element", "micro-batch", "step", "window"}
PLAIN_FIELDS = {"world_size", "parameters", "program", "caller", "sparse", "wire", "only", "learning_rate", "roles"}


def needs(drawn: Any) -> frozenset[str]:
    """The needs of a drawn program: everything in which it differs from the plainest one.

    A program on two ranks with one parameter of one element and one micro-batch has none. A tuple has the needs of all
    its items.
    """
    if isinstance(drawn, tuple):
        return frozenset().union(*map(needs, drawn))
    if isinstance(drawn, Scenario):
        return _of_a_program(drawn)
    if isinstance(drawn, ModelScenario):
        return frozenset(_of_a_model(drawn))
    if isinstance(drawn, Exercise):
        return frozenset(_unusual(f"{drawn.called}:", drawn))
    return frozenset()  # values drawn beside a program, for example a moment, belong to the law


def has(drawn: Any) -> frozenset[str]:
    """The needs of a program and the names that they imply: everything it contains, for comparison with a cause."""
    if isinstance(drawn, tuple):
        return frozenset().union(*map(has, drawn))
    if isinstance(drawn, ModelScenario):
        return needs(drawn).union(_shared_with_programs(drawn))
    return _named_of_a_program(drawn) if isinstance(drawn, Scenario) else needs(drawn)


def are_alternatives(one: frozenset[str], other: frozenset[str]) -> bool:
    """True if two causes differ only in features that lead to the same state."""
    differs = one ^ other
    return any(differs <= each for each in ALTERNATIVES) or (AGAIN in one & other and differs <= BEFORE_AGAIN)


def is_named(need: str) -> bool:
    """True if the need is a feature in words, not only a field or a count."""
    return need[:1].islower() and ":" not in need and "_" not in need


def is_counted(need: str) -> bool:
    """True if the need only says that there are at least so many of something."""
    number, _, what = need.partition(" ")
    return number.isdigit() and what.removesuffix("es").removesuffix("s") in COUNTED


@lru_cache(maxsize=4096)
def _of_a_program(scenario: Scenario) -> frozenset[str]:
    found = _named_of_a_program(scenario)
    return found.difference(*(_IMPLIED.get(need, ()) for need in found))


@lru_cache(maxsize=4096)
def _named_of_a_program(scenario: Scenario) -> frozenset[str]:
    found = {*_features(scenario), *_set_up(scenario), *_events(scenario), *_counts(scenario)}
    if not any(event.frozen for _, event in scenario.events(Freeze)):
        found -= FREEZES
    return frozenset(found)


# Not features, but not claimed by every implementation; named as in `properties.strategies.within.beyond`.
MORE: Mapping[str, Any] = {
    "different hook orders": hook_orders_differ,
    "scalars": lambda s: any(each.shape == () for each in s.parameters),
    "several dtypes": lambda s: len({each.dtype for each in s.parameters}) > 1,
    "parameters in float64": lambda s: any(each.dtype == "float64" for each in s.parameters),
    "what is synchronized on top of what was synchronized before": on_averages,
    "several forwards before a backward": lambda s: any(batch.forwards > 1 for batch in s.microbatches),
    "several backwards": lambda s: any(batch.backwards > 1 for batch in s.microbatches),
    "several backwards that synchronize": several_at_once,
    # No implementation can decline these.
    "frozen parameters": lambda s: not all(each.trainable for each in s.parameters),
    AGAIN: lambda s: any(not event.frozen for _, event in s.events(Freeze)),
    "another order than that of registration": lambda s: any(
        list(order) != sorted(order) for batch in s.microbatches for order in batch.orders
    ),
    "an odd number of ranks": lambda s: s.world_size > 1 and s.world_size % 2 == 1,
    "another model": lambda s: bool(s.caller.beside or s.caller.joint),
}


# A program that has the key has the values, too.
_IMPLIED: Mapping[str, tuple[str, ...]] = {
    "different hook orders": ("another order than that of registration", "2 parameters"),
    "unused": ("2 parameters",),
    "an odd number of ranks": ("3 ranks",),
    AGAIN: ("freeze", "Freeze", "Freeze:frozen"),
}


def _features(scenario: Scenario) -> Iterator[str]:
    for name, feature in FEATURES.items():
        if feature.occurs(scenario):
            yield name
    for name, occurs in MORE.items():
        if occurs(scenario):
            yield name


def _set_up(scenario: Scenario) -> Iterator[str]:
    yield from _unusual("", scenario, PLAIN_FIELDS)
    yield from _unusual("caller:", scenario.caller)
    for parameter in scenario.parameters:
        yield from _unusual("parameter:", parameter, {"shape", "trainable"})


def _events(scenario: Scenario) -> Iterator[str]:
    for event in scenario.program:
        kind = type(event).__name__
        if not isinstance(event, Backward | Finish):
            yield kind
        yield from _unusual(f"{kind}:", event, {"parameters", "orders", "gone"})


def _counts(scenario: Scenario) -> Iterator[str]:
    for what, least, count in (
        ("ranks", 3, scenario.world_size),
        ("parameters", 2, len(scenario.parameters)),
        ("elements", 2, max(map(_count, scenario.parameters))),
        ("micro-batches", 2, len(scenario.microbatches)),
        ("steps", 1, len(scenario.places(Step))),
        ("windows", 2, len(scenario.places(ZeroGrad)) + 1),
    ):
        yield from (f"{number} {what}" for number in range(least, count + 1))


def _count(parameter: Parameter) -> int:
    return parameter.count


def _of_a_model(scenario: ModelScenario) -> Iterator[str]:
    yield "a real model"
    yield from _unusual("model:", scenario, {"world_size", "local", "seed", "dtype"})
    if scenario.model != ModelScenario.model:
        yield f"the model {scenario.model}"
    if any(scenario.local):
        yield "accumulation"
    if scenario.dtype == "float64":
        yield "parameters in float64"
    if scenario.bucket_cap is not None:
        yield "cap"
    yield from (f"{number} steps" for number in range(2, len(scenario.local) + 1))
    yield from (f"{number} ranks" for number in range(3, scenario.world_size + 1))


def _shared_with_programs(scenario: ModelScenario) -> Iterator[str]:
    """The features of programs that a run of a real model has, too: a defect that shows in those shows in this."""
    yield from ("step", "zero grad", "1 steps", "2 parameters", "2 elements", "3 elements", "4 elements")
    batches = sum(scenario.local) + len(scenario.local)
    yield from (f"{number} micro-batches" for number in range(2, batches + 1))
    yield from (f"{number} windows" for number in range(2, len(scenario.local) + 1))
    if len(scenario.local) > 1:
        yield "several steps"
    if scenario.frozen:
        yield from ("freeze", AGAIN) if scenario.thaws else ("frozen parameters",)
    if scenario.evaluated:
        yield "evaluate"
    if scenario.saved:
        yield "save and load"
    if scenario.model in BUFFERED:
        yield "buffers"
    if scenario.optimizer != "SGD":
        yield scenario.optimizer.lower()


def _unusual(of: str, thing: Any, apart: set[str] = frozenset()) -> Iterator[str]:  # type: ignore[assignment]
    """The names of the fields that differ from their defaults."""
    assert is_dataclass(thing)
    for item in fields(thing):
        if item.name not in apart and item.default is not MISSING and getattr(thing, item.name) != item.default:
            yield f"{of}{item.name}"
