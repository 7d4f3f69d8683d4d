"""What a scenario can have, by name: whether it has it, what must be claimed for it, and what brings it about."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise

from lockstep.oracle.events import (
    Backward,
    Clip,
    Evaluate,
    Event,
    Freeze,
    Join,
    Load,
    Raise,
    Replace,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    Write,
    ZeroGrad,
)
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.model import LAYOUTS
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import MODES, SIGNS
from lockstep.properties.claims import MASTERS, Claims

Claimed = Callable[[Claims], bool]


@dataclass(frozen=True)
class Feature:
    """``phases`` of a program and ``options`` of a scenario bring it about; ``parameters``: how many it takes."""

    occurs: Callable[[Scenario], bool]
    claimed: Claimed = lambda claims: True
    phases: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    parameters: int = 1


def _has(*kinds: type[Event]) -> Callable[[Scenario], bool]:
    return lambda scenario: scenario.has(*kinds)


def _in_turn(scenario: Scenario, *kinds: type[Event]) -> bool:
    """Whether events of these kinds come one after the other, others maybe in between."""
    events = iter(scenario.program)
    return all(any(isinstance(event, kind) for event in events) for kind in kinds)


def _accumulates(scenario: Scenario) -> bool:
    return not all(batch.synchronize for batch in scenario.microbatches)


def _leaves_some_unused(scenario: Scenario) -> bool:
    """Whether a parameter that takes part somewhere, or is trained throughout, takes no part elsewhere."""
    trained = {index for index, parameter in enumerate(scenario.parameters) if parameter.trainable}
    per_rank = scenario.samples // scenario.world_size
    used = [
        {frozenset(order) for sample, order in enumerate(batch.orders) if sample // per_rank not in batch.gone}
        for batch in scenario.microbatches
    ]
    if scenario.has(Freeze):
        return any(len(orders) > 1 for orders in used)
    return any(orders != {frozenset(trained)} for orders in used)


def _steps_apart(scenario: Scenario) -> bool:
    """Whether there are two steps with a synchronization in between."""
    first, synchronized = False, False
    for event in scenario.program:
        if isinstance(event, Step):
            if first and synchronized:
                return True
            first, synchronized = True, False
        synchronized = synchronized or (isinstance(event, Backward) and event.synchronize)
    return False


def _goes_on(scenario: Scenario) -> bool:
    """Whether there is a step before everything is saved and loaded, and another, of new gradients, after."""
    kinds = [type(event) for event in scenario.program]
    places = [place for place, event in enumerate(scenario.program) if event == SaveAndLoad()]
    return any(Step in kinds[:place] and Backward in kinds[place:] and Step in kinds[place:] for place in places)


def _steps_idly(scenario: Scenario) -> bool:
    """Whether there is a step without any gradient."""
    return any(not scenario.standings[place].gradients for place in scenario.places(Step))


def _zeroed_in_between(scenario: Scenario) -> bool:
    """Whether gradients are dropped or zeroed between two micro-batches."""
    zeroed = False
    for event in scenario.program:
        zeroed = zeroed or isinstance(event, ZeroGrad)
        if zeroed and isinstance(event, Backward):
            return True
    return False


def _drops_a_window(scenario: Scenario) -> bool:
    """Whether gradients are dropped or zeroed that have accumulated inside `no_sync`."""
    local = False
    for event in scenario.program:
        if local and isinstance(event, ZeroGrad):
            return True
        if isinstance(event, Backward):
            local = not event.synchronize
        elif isinstance(event, Raise) and event.drops_gradients:
            local = False
    return False


def _clips_an_overflow(scenario: Scenario) -> set[bool]:
    """Of the Clip events, whether gradients have overflowed there."""
    clips = (place for place, event in enumerate(scenario.program) if isinstance(event, Clip))
    return {bool(scenario.overflowed(place)) for place in clips}


def _clips_twice(scenario: Scenario) -> bool:
    """Whether gradients are clipped, dropped or zeroed, and others clipped."""
    return _in_turn(scenario, Clip, ZeroGrad, Backward, Clip)


def _windows_left(scenario: Scenario) -> int:
    """In how many windows of a join ranks run out of micro-batches before others do."""
    left = [False]
    for event in scenario.program:
        if isinstance(event, Join):
            left.append(False)
        elif isinstance(event, Backward) and event.gone:
            left[-1] = True
    return sum(left)


def _others_stay(scenario: Scenario) -> bool:
    """Whether those who are last in one window of a join have run out in another."""
    stay: list[set[int]] = []
    for event in scenario.program:
        if isinstance(event, Join):
            stay.append(set(range(scenario.world_size)))
        elif isinstance(event, Backward) and stay:
            stay[-1].difference_update(event.gone)
    return any(not here & there for here, there in combinations(stay, 2))


def _steps_without_rank_zero(scenario: Scenario) -> bool:
    """Whether there is a step after a micro-batch for which rank 0 was gone."""
    batches = [event for event in scenario.program if isinstance(event, Backward | Step)]
    return any(
        isinstance(before, Backward) and 0 in before.gone and isinstance(event, Step)
        for before, event in pairwise(batches)
    )


def _in_sixteen_bits(scenario: Scenario) -> bool:
    return any(FORMATS[parameter.dtype].bytes == 2 for parameter in scenario.parameters)


def _sixteen(claims: Claims) -> bool:
    return claims.sixteen_bits


FEATURES: dict[str, Feature] = {
    "accumulation": Feature(_accumulates, lambda claims: claims.accumulation, ("local",)),
    "nested": Feature(
        lambda s: any(batch.nested for batch in s.microbatches), lambda claims: claims.accumulation, ("nested",)
    ),
    "together": Feature(
        lambda s: any(map(s.stays_in_no_sync, range(len(s.program)))), lambda claims: claims.accumulation, ("together",)
    ),
    "drop window": Feature(
        _drops_a_window, lambda claims: claims.accumulation and claims.drops_windows, ("drop window",)
    ),
    "unused": Feature(_leaves_some_unused, lambda claims: claims.unused is not None, parameters=2),
    "step": Feature(_has(Step), phases=("step",)),
    "several optimizers": Feature(
        lambda s: len(s.optimizers) > 1,
        lambda claims: claims.several_optimizers,
        phases=("steps of some",),
        options=("groups",),
        parameters=2,
    ),
    "idle step": Feature(_steps_idly, lambda claims: claims.idle_steps, ("idle step",)),
    "several steps": Feature(_steps_apart, phases=("step", "synchronize", "step")),
    "zero grad": Feature(_zeroed_in_between, phases=("drop gradients", "synchronize")),
    "clip": Feature(lambda s: False in _clips_an_overflow(s), phases=("clip",)),
    "clips twice": Feature(_clips_twice, phases=("clip", "drop gradients", "clip")),
    "loss scale": Feature(lambda s: s.loss_scale is not None, options=("loss scale",)),
    "overflow": Feature(
        lambda s: any(batch.overflow for batch in s.microbatches), phases=("overflow",), options=("loss scale",)
    ),
    "clipped overflow": Feature(
        lambda s: True in _clips_an_overflow(s), phases=("overflow", "clip"), options=("loss scale",)
    ),
    "momentum": Feature(
        lambda s: s.optimizer == "SGD" and bool(s.hyperparameters.momentum), phases=("step",), options=("momentum",)
    ),
    "adam": Feature(lambda s: s.optimizer != "SGD", phases=("step",), options=("adam",)),
    "groups": Feature(lambda s: bool(s.groups), phases=("step",), options=("groups",)),
    "three groups": Feature(lambda s: len(s.all_groups) > 2, phases=("step",), options=("groups",), parameters=3),
    "set hyperparameters": Feature(_has(SetHyperparameters), phases=("set",)),
    "masters": Feature(
        lambda s: s.masters and _in_sixteen_bits(s),
        lambda claims: claims.sixteen_bits and claims.may_keep_masters,
        ("step",),
        ("16 bits", "masters"),
    ),
    "zeros": Feature(lambda s: s.sparse[1] > 1, options=("zeros",)),
    "signs": Feature(lambda s: s.signs != SIGNS[0]),
    "quadratic": Feature(lambda s: s.probe == "quadratic"),
    "eval mode": Feature(lambda s: s.mode != MODES[0], lambda claims: claims.eval_mode),
    "16 bits": Feature(_in_sixteen_bits, _sixteen, options=("16 bits",)),
    "freeze": Feature(_has(Freeze), lambda claims: claims.freezing, ("freeze",), parameters=2),
    "save": Feature(_has(SaveAndLoad), phases=("save",)),
    "go on": Feature(_goes_on, phases=("synchronize", "step", "save", "synchronize", "step")),
    "keep": Feature(_has(Save, Load), lambda claims: claims.reloads, ("keep", "go back")),
    "go back": Feature(
        lambda s: _in_turn(s, Save, Step, Load, Backward, Step),
        lambda claims: claims.reloads,
        ("keep", "synchronize", "step", "go back", "synchronize", "step"),
    ),
    "evaluate, go back": Feature(
        lambda s: _in_turn(s, Save, Step, Evaluate, Load, Backward),
        lambda claims: claims.reloads and claims.evaluates,
        ("keep", "synchronize", "step", "evaluate", "go back", "synchronize"),
    ),
    "evaluate": Feature(_has(Evaluate), lambda claims: claims.evaluates, ("evaluate",)),
    "infer": Feature(
        lambda s: any(isinstance(event, Evaluate) and event.inference for event in s.program),
        lambda claims: claims.infers,
        ("infer",),
    ),
    "raise": Feature(_has(Raise), lambda claims: claims.survives_errors, ("raise",)),
    "raise, go on": Feature(
        lambda s: _in_turn(s, Raise, Step, Backward),
        lambda claims: claims.survives_errors,
        ("raise", "synchronize", "step", "synchronize"),
        parameters=2,
    ),
    "raise, freeze": Feature(
        lambda s: _in_turn(s, Raise, Freeze, Backward),
        lambda claims: claims.survives_errors and claims.freezing,
        ("raise", "freeze", "synchronize"),
        parameters=3,
    ),
    "buffers": Feature(lambda s: bool(s.buffers), lambda claims: claims.buffers is not None, options=("buffers",)),
    "tied": Feature(
        lambda s: any(parameter.tied is not None for parameter in s.parameters),
        lambda claims: claims.tied_parameters,
        options=("tied",),
    ),
    "empty": Feature(
        lambda s: any(parameter.count == 0 for parameter in s.parameters),
        lambda claims: claims.empty_parameters,
        options=("empty",),
    ),
    "layout": Feature(
        lambda s: any(parameter.layout != LAYOUTS[0] for parameter in s.parameters),
        lambda claims: claims.strided_parameters,
        options=("layout",),
    ),
    "units": Feature(lambda s: bool(s.units), options=("units",)),
    "outside": Feature(lambda s: bool(s.outside), lambda claims: claims.outside_reads, options=("outside",)),
    "replicas": Feature(lambda s: s.replicas > 1, lambda claims: claims.replicas, options=("replicas",)),
    "outsiders": Feature(
        lambda s: s.outsiders > 0,
        lambda claims: claims.subgroups and claims.most_ranks > 1,
        options=("outsiders",),
    ),
    "joins": Feature(
        lambda s: any(batch.gone for batch in s.microbatches), lambda claims: bool(claims.joins), ("join",)
    ),
    "joins twice": Feature(
        lambda s: _windows_left(s) > 1, lambda claims: bool(claims.joins), ("join", "end join", "join")
    ),
    "others stay": Feature(
        _others_stay,
        lambda claims: bool(claims.joins),
        ("join", "synchronize", "step", "end join", "join", "synchronize", "step"),
    ),
    "step without rank 0": Feature(
        _steps_without_rank_zero,
        lambda claims: bool(claims.joins),
        ("join", "synchronize", "step", "end join"),
    ),
    "replace": Feature(_has(Replace), lambda claims: claims.replaced_parameters, ("replace",)),
    "write": Feature(_has(Write), lambda claims: claims.writes_weights and claims.masters != MASTERS, ("write",)),
    "write between steps": Feature(
        lambda s: _in_turn(s, Step, Write, Backward, Step),
        lambda claims: claims.writes_weights and claims.masters != MASTERS,
        ("step", "write", "synchronize", "step"),
    ),
    "cap": Feature(lambda s: s.bucket_cap is not None, lambda claims: claims.bucket_cap, options=("cap",)),
}


def wanted(has: tuple[str, ...], claims: Claims, enclosed: bool) -> list[Feature]:
    """The features of those names. ValueError for one that does not exist, or that is not claimed, or, unless
    ``enclosed``, that no data makes exact.
    """
    for name in has:
        if name not in FEATURES:
            raise ValueError(f"there is no feature {name!r} to draw; there are {', '.join(FEATURES)}")
        if not FEATURES[name].claimed(claims):
            raise ValueError(f"{name!r} cannot be drawn: it is not claimed")
        if name == "adam" and not enclosed:
            raise ValueError("'adam' cannot be drawn where every bit is to be known: no data makes a step of it exact")
    return [FEATURES[name] for name in has]
