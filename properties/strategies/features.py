"""The features of scenarios by name: those of the whole scenario, and those of each event."""

from collections.abc import Callable
from itertools import islice

from lockstep.oracle.events.backward import OVERFLOWS
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.model import LAYOUTS
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import MODES, SIGNS
from lockstep.properties.claims import Claims
from lockstep.properties.events import FACETS, general_draw
from lockstep.properties.events.facet import Feature
from lockstep.properties.events.options import APART
from lockstep.properties.events.step import STEP


def _in_sixteen_bits(scenario: Scenario) -> bool:
    return any(FORMATS[parameter.dtype].bytes == 2 for parameter in scenario.parameters)


_SET_UP: dict[str, Feature] = {
    "loss scale": Feature(lambda s: s.loss_scale is not None, options=("loss scale",)),
    "momentum": Feature(
        lambda s: s.optimizer == "SGD" and bool(s.hyperparameters.momentum), (STEP,), options=("momentum",)
    ),
    "adam": Feature(lambda s: s.optimizer != "SGD", (STEP,), options=("adam",)),
    "groups": Feature(lambda s: bool(s.groups), (STEP,), options=("groups",)),
    "three groups": Feature(lambda s: len(s.all_groups) > 2, (STEP,), options=("groups",), parameters=3),
    "masters": Feature(lambda s: s.masters and _in_sixteen_bits(s), (STEP,), options=("16 bits", "masters")),
    "zeros": Feature(lambda s: s.sparse[1] > 1, options=("zeros",)),
    "signs": Feature(lambda s: s.signs != SIGNS[0]),
    "quadratic": Feature(lambda s: s.probe == "quadratic"),
    "eval mode": Feature(lambda s: s.mode != MODES[0], claim=lambda claims: claims.eval_mode),
    "16 bits": Feature(_in_sixteen_bits, options=("16 bits",)),
    "buffers": Feature(lambda s: bool(s.buffers), options=("buffers",)),
    "tied": Feature(lambda s: any(parameter.tied is not None for parameter in s.parameters), options=("tied",)),
    "empty": Feature(lambda s: any(parameter.count == 0 for parameter in s.parameters), options=("empty",)),
    "layout": Feature(lambda s: any(parameter.layout != LAYOUTS[0] for parameter in s.parameters), options=("layout",)),
    "units": Feature(lambda s: bool(s.units), options=("units",)),
    "outside": Feature(lambda s: bool(s.outside), options=("outside",)),
    "replicas": Feature(lambda s: s.replicas > 1, options=("replicas",)),
    "outsiders": Feature(lambda s: s.outsiders > 0, options=("outsiders",)),
    "cap": Feature(lambda s: s.bucket_cap is not None, options=("cap",)),
    "early optimizer": Feature(lambda s: bool(s.caller.makes_optimizer), (STEP,), options=("early optimizer",)),
    "asked wrapper": Feature(lambda s: s.caller.asks_the_wrapper, options=("asked wrapper",)),
    "seeded": Feature(lambda s: s.caller.seeded, options=("seeded",)),
    "hooks": Feature(lambda s: s.caller.hooked > 0, options=("hooks",)),
    "hooks on modules": Feature(lambda s: s.caller.module_hooked > 0, options=("hooks on modules",)),
    "kept gradients": Feature(lambda s: s.caller.keeps_gradients, options=("kept gradients",)),
    "registered": Feature(lambda s: bool(s.registered), options=("registered",), parameters=2),
}
# The order of the features, on which the meaning of a seed depends. Features that are not listed come last.
_FIRST = (
    *("accumulation", "nested", "together", "drop window", "unused", "step", "several optimizers", "idle step"),
    *("several steps", "zero grad", "clip", "clips twice", "loss scale", "overflow", "clipped overflow", "momentum"),
    *("adam", "groups", "three groups", "set hyperparameters", "masters", "zeros", "signs", "quadratic", "eval mode"),
    *("16 bits", "freeze", "save and load", "go on", "save, load", "go back", "evaluate, go back", "evaluate", "infer"),
    *("raise", "raise, go on", "raise, freeze", "buffers", "tied", "empty", "layout", "units", "outside", "replicas"),
    *("outsiders", "joins", "joins twice", "others stay", "step without rank 0", "replace", "write"),
    *("write between steps", "cap"),
)
_ALL = [*_SET_UP.items(), *(item for facet in FACETS.values() for item in facet.features().items())]
FEATURES: dict[str, Feature] = dict(
    sorted(_ALL, key=lambda item: _FIRST.index(item[0]) if item[0] in _FIRST else len(_FIRST))
)
if len(FEATURES) < len(_ALL):
    raise ValueError(f"several features have one name: {', '.join(sorted(name for name, _ in _ALL))}")


def wanted(has: tuple[str, ...], claims: Claims, enclosed: bool) -> list[Feature]:
    """The features of those names.

    Raises ValueError for a feature that does not exist or is not claimed. Unless ``enclosed``, it also raises
    ValueError for a feature whose results are never exact.
    """
    for name in has:
        if name not in FEATURES:
            raise ValueError(f"there is no feature {name!r} to draw; there are {', '.join(FEATURES)}")
        if not FEATURES[name].claimed(claims):
            raise ValueError(f"{name!r} cannot be drawn: it is not claimed")
        if name == "adam" and not enclosed:
            raise ValueError("'adam' cannot be drawn where every bit is to be known: no data makes a step of it exact")
    return [FEATURES[name] for name in has]


def having(*names: str) -> Callable[[Scenario], bool]:
    """A condition on scenarios: one of these features occurs.

    Scenarios in which ranks run out of micro-batches do not count unless they are asked for, because most laws compare
    values that such a rank does not have.
    """
    features = [FEATURES[name] for name in names]
    return lambda scenario: (
        any(each.occurs(scenario) for each in features)
        and (any(name.startswith("joins") for name in names) or not FEATURES["joins"].occurs(scenario))
    )


def all_of(*names: str) -> Callable[[Scenario], bool]:
    """A condition on scenarios: each of these features occurs, and no rank runs out of micro-batches."""
    return lambda scenario: anything(scenario) and all(FEATURES[name].occurs(scenario) for name in names)


def anything(scenario: Scenario) -> bool:
    """A condition on scenarios: no rank runs out of micro-batches."""
    return not FEATURES["joins"].occurs(scenario)


def is_usual(scenario: Scenario, claims: Claims) -> bool:
    """True if the general draw can produce the scenario and no rank runs out of micro-batches.

    Laws that compare runs draw only such scenarios.
    """
    general = general_draw(claims)
    apart = (
        feature
        for feature in FEATURES.values()
        if any(option in APART and option != "cap" for option in feature.options)
        or any(kind not in general for kind in feature.phases)
    )
    batches = scenario.microbatches
    several = any(batch.forwards > 1 or batch.backwards > 1 for batch in batches)
    # This kind of overflow changes one element of the last parameter, and another order has another last parameter.
    otherwise = any(batch.overflow and batch.overflows != OVERFLOWS[0] for batch in batches)
    caller = scenario.caller
    return (
        anything(scenario)
        and not several
        and not otherwise
        and not (caller.beside or caller.joint)
        and (not any(feature.occurs(scenario) for feature in apart))
    )


def features_meet(scenario: Scenario) -> bool:
    """A condition on scenarios: at least two features occur, and no rank runs out of micro-batches."""
    those = (name for name, feature in FEATURES.items() if feature.occurs(scenario))
    return anything(scenario) and len(list(islice(those, 2))) == 2
