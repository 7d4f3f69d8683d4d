"""What makes a scenario one that a training loop could have; `oracle.program` says what it then means."""

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lockstep.oracle import hyperparameters
from lockstep.oracle.events import (
    Backward,
    Clip,
    EndJoin,
    Evaluate,
    Event,
    Finish,
    Freeze,
    Hyperparameters,
    Join,
    Load,
    Raise,
    Replace,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    Unscale,
    Write,
    ZeroGrad,
    gradients_there,
    is_whole,
)

if TYPE_CHECKING:
    from lockstep.oracle.program import Scenario

_ONLY_SGD, _ONLY_ADAM = ("momentum", "dampening", "nesterov"), ("betas", "eps")


def check(scenario: "Scenario") -> None:
    """ValueError, in one line that shows the value, for a scenario that means nothing."""
    if not is_whole(scenario.world_size, 1):
        raise ValueError(f"a world has at least one rank, not {scenario.world_size}")
    if not scenario.parameters:
        raise ValueError("a model has at least one parameter, not ()")
    if scenario.bucket_cap is not None and scenario.bucket_cap < 0:
        raise ValueError(f"a bucket cap is a number of bytes, not {scenario.bucket_cap}")
    if not (0 < scenario.learning_rate <= 1 and _is_power_of_two(scenario.learning_rate)):
        raise ValueError(f"a learning rate is a power of two of at most 1, not {scenario.learning_rate}")
    run, runs = scenario.sparse
    if not (is_whole(run, 0) and is_whole(runs, run + 1)):
        raise ValueError(f"a sparse run is (i, n) with 0 <= i < n, not {scenario.sparse}")
    scale = scenario.loss_scale
    if scale is not None and not (1 <= scale.initial <= 2.0**16 and _is_power_of_two(scale.initial)):
        raise ValueError(f"a loss scale is a power of two from 1 to 2**16, not {scale.initial}")
    if scale is not None and not is_whole(scale.growth_interval, 1):
        raise ValueError(f"a loss scale grows after a whole number of steps from 1, not {scale.growth_interval}")
    _check_model(scenario)
    _check_samples(scenario)
    _check_program(scenario)
    _check_joins(scenario)
    if scenario.only is not None:
        _check_only(scenario, *scenario.only)


def _is_power_of_two(number: float) -> bool:
    return bool(np.frexp(number)[0] == 0.5)


def _check_model(scenario: "Scenario") -> None:
    """Ties lead to an earlier tensor that is alike, groups share the tensors out, and units the parameters."""
    for index, parameter in enumerate(scenario.parameters):
        if parameter.tied is not None:
            root = scenario.parameters[parameter.tied] if 0 <= parameter.tied < index else None
            if root is None or root.tied is not None:
                raise ValueError(f"parameter {index} is tied to {parameter.tied}, which is no earlier tensor")
            if replace(parameter, tied=None) != root:
                raise ValueError(f"parameter {index}, {parameter!r}, is tied to one that differs: {root!r}")
    named = [parameter for group in scenario.groups for parameter in group.parameters]
    for index in named:
        if not 0 <= index < len(scenario.parameters) or scenario.parameters[index].tied is not None:
            raise ValueError(f"a group names parameter {index}, which is no tensor of the model")
        if named.count(index) > 1:
            raise ValueError(f"parameter {index} is in a group {named.count(index)} times")
    placed = [parameter for unit in scenario.units for parameter in unit]
    for index in placed:
        if not 0 <= index < len(scenario.parameters) or placed.count(index) > 1:
            raise ValueError(f"units {scenario.units} do not name parameters once each")
    if not set(scenario.outside) <= set(placed) or len(set(scenario.outside)) < len(scenario.outside):
        raise ValueError(f"outside {scenario.outside} does not name parameters of units once each")
    if not is_whole(scenario.replicas, 1) or scenario.world_size % scenario.replicas:
        raise ValueError(f"{scenario.world_size} ranks cannot form {scenario.replicas} replicas of equal size")
    if not is_whole(scenario.outsiders, 0):
        raise ValueError(f"0 ranks or more take no part, not {scenario.outsiders}")
    if scenario.outsiders and scenario.replicas > 1:
        raise ValueError(f"{scenario.replicas} replicas are made of a whole world: {scenario.outsiders} outsiders")
    for values in (scenario.hyperparameters, *(group.hyperparameters for group in scenario.groups)):
        _check_options(scenario, values)


def _check_options(scenario: "Scenario", values: Hyperparameters) -> None:
    """Only options that the optimizer has; whether they go together is seen when they are put together."""
    others = _ONLY_ADAM if scenario.optimizer == "SGD" else _ONLY_SGD
    for name in others:
        if getattr(values, name) is not None:
            raise ValueError(f"{name} {getattr(values, name)} is no option of {scenario.optimizer}")
    if values.betas is not None and len(values.betas) != 2:
        raise ValueError(f"betas are two numbers, not {values.betas}")
    for name, value in vars(values).items():
        if value is not None and not np.isfinite(value).all():
            raise ValueError(f"{name} {value} is not finite")


def _check_samples(scenario: "Scenario") -> None:
    """Every micro-batch has as many samples as the first, shared evenly, and every rank something to do."""
    samples = scenario.samples
    if samples % scenario.world_size or samples < 1:
        raise ValueError(f"{samples} samples cannot be shared evenly by {scenario.world_size} ranks")
    for event in scenario.microbatches:
        if len(event.orders) != samples:
            raise ValueError(f"a Backward orders {len(event.orders)} samples where the first ordered {samples}")
        if event.overflow and (scenario.loss_scale is None or scenario.probe != "linear"):
            raise ValueError(f"an overflow on ranks {event.overflow} takes a loss scale and the linear probe")
        if not set(event.overflow) <= set(range(scenario.world_size)):
            raise ValueError(f"an overflow on ranks {event.overflow}, of which there are {scenario.world_size}")
    for batch, rank in itertools.product(range(len(scenario.microbatches)), range(scenario.world_size)):
        if not scenario.order(batch, rank) and rank not in scenario.microbatches[batch].gone:
            raise ValueError(f"rank {rank} uses no parameter in micro-batch {batch}, so there is no backward to run")


def _check_program(scenario: "Scenario") -> None:
    """Each backward uses trained parameters, each synchronization is finished, and each event finds what it needs."""
    trained = {index for index, parameter in enumerate(scenario.parameters) if parameter.trainable}
    unfinished = unsynchronized = unscaled = leftover = saved = False
    for event, gradients in zip(scenario.program, gradients_there(scenario.program), strict=True):
        if unfinished != isinstance(event, Finish):
            raise ValueError(f"Finish follows each synchronizing Backward, and nothing else: here is {event!r}")
        unfinished = isinstance(event, Backward) and event.synchronize
        if isinstance(event, Load) and not saved:
            raise ValueError(f"{event!r} finds nothing: no Save has come since all was built")
        if unsynchronized and not isinstance(event, (Backward, Evaluate, Raise, ZeroGrad)):
            raise ValueError(f"{event!r} follows a Backward that did not synchronize")
        if leftover and event != ZeroGrad():
            raise ValueError(f"{event!r} follows a Freeze that came while there were gradients: drop them first")
        leftover = isinstance(event, Freeze) and gradients
        if unsynchronized and isinstance(event, ZeroGrad) and scenario.buffers and scenario.broadcast_buffers:
            raise ValueError(f"{event!r} leaves open whether a window begins, and buffers are broadcast: have none")
        _check_event(scenario, event, trained, gradients, unscaled)
        again = isinstance(event, Backward) and event.synchronize and event.forwards > 1 and unsynchronized
        if again and scenario.buffers and scenario.broadcast_buffers:
            raise ValueError(f"{event!r} leaves open before which forward buffers are broadcast: have none")
        match event:
            case Backward():
                unsynchronized = not event.synchronize
            case ZeroGrad():
                unsynchronized = unsynchronized and not event.set_to_none
            case SaveAndLoad() | Load():
                unscaled = False
                saved = isinstance(event, Load)
            case Save():
                saved = True
            case Freeze():
                trained = scenario.trained_after(event, trained)
            case Unscale() | Step():
                unscaled = isinstance(event, Unscale)
    hyperparameters.at(scenario, len(scenario.program))
    if leftover:
        raise ValueError("the program ends with a Freeze that came while there were gradients: drop them first")
    if unfinished or unsynchronized:
        raise ValueError("the program ends before its last Backward is synchronized and finished")


def _check_joins(scenario: "Scenario") -> None:
    """Ranks that have run out stay away up to EndJoin, and leave nothing behind that only some ranks have changed."""
    gone: set[int] | None = None  # outside of any window
    for event in scenario.program:
        if isinstance(event, EndJoin if gone is None else Join):
            raise ValueError(f"{event!r}: a Join is not inside another, and EndJoin ends one")
        if gone is not None and not isinstance(event, (Backward, Finish, Clip, Step, ZeroGrad, EndJoin)):
            raise ValueError(f"{event!r} comes before EndJoin, where ranks that have run out would miss it")
        if isinstance(event, Join | EndJoin):
            gone = set() if isinstance(event, Join) else None
        elif isinstance(event, Backward) and (gone is not None or event.gone):
            everyone, then = set(range(scenario.world_size)), gone
            gone = set(event.gone)
            if then is None or not then <= gone < everyone or len(gone) < len(event.gone):
                has = "no Join" if then is None else f"{sorted(then)} gone before"
                raise ValueError(f"ranks {event.gone} of {scenario.world_size} cannot be gone after {has}")
            per_rank = scenario.samples // scenario.world_size
            if any(order for sample, order in enumerate(event.orders) if sample // per_rank in gone):
                raise ValueError(f"{event!r} has a micro-batch for a rank that is gone")
    if gone is not None:
        raise ValueError("the program ends before EndJoin")
    options = (scenario.hyperparameters, *(group.hyperparameters for group in scenario.groups))
    options += tuple(event.values for event in scenario.program if isinstance(event, SetHyperparameters))
    keeps = scenario.optimizer != "SGD" or scenario.masters or any(values.momentum for values in options)
    if Join in map(type, scenario.program) and (keeps or scenario.loss_scale is not None or scenario.buffers):
        raise ValueError("Join takes SGD without momentum or masters, no loss scale and no buffers: others keep theirs")


def _check_event(scenario: "Scenario", event: Event, trained: set[int], gradients: bool, unscaled: bool) -> None:
    """``gradients``: whether there can be any; ``unscaled``: whether Unscale has come since the last Step."""
    match event:
        case Backward():
            for order in event.orders:
                if len(set(order)) != len(order) or not set(order) <= trained:
                    raise ValueError(f"the order {order} does not name trainable parameters once each")
        case Unscale() if scenario.loss_scale is None or unscaled or not gradients:
            has = f"loss scale {scenario.loss_scale}, {'' if gradients else 'no '}gradients"
            raise ValueError(f"Unscale takes a loss scale and gradients, and comes once before a Step: here is {has}")
        case Step() if scenario.loss_scale is not None and not gradients:
            raise ValueError("with a loss scale, Step takes gradients, to see whether they overflowed")
        case Step() if event.groups is not None:
            some = {number for number, group in enumerate(scenario.all_groups) if group.parameters}
            if not {*event.groups} <= some or scenario.loss_scale is not None:
                has = f"groups {sorted(some)} have some, and the loss scale is {scenario.loss_scale}"
                raise ValueError(f"{event!r} takes groups with parameters, and no loss scale: {has}")
        case Clip() if event.norm_type == float("inf") and any(p.count == 0 for p in scenario.parameters):
            raise ValueError("a parameter without elements has no largest one: clip it by another norm than inf")
        case SetHyperparameters():
            _check_options(scenario, event.values)
            if event.group is not None and not 0 <= event.group <= len(scenario.groups):
                raise ValueError(f"there is no group {event.group}: the last is {len(scenario.groups)}")
        case Freeze() | Replace() | Write():
            if isinstance(event, Write) and scenario.masters:
                raise ValueError(f"{event!r} comes where there are masters, which do not hear of it: have none")
            if gradients and isinstance(event, Replace):
                raise ValueError(f"{event!r} comes while there are gradients: drop them first")
            if not set(event.parameters) <= {*scenario.tensors}:
                raise ValueError(f"{event!r} names what is no tensor of the model")
        case Raise() | Evaluate() if scenario.buffers and scenario.broadcast_buffers:
            raise ValueError(f"{event!r} leaves open when buffers that are broadcast are broadcast next: have none")
        case Raise() if not trained or not (event.rank is None or 0 <= event.rank < scenario.world_size):
            raise ValueError(f"{event!r} takes a trained parameter and one of the {scenario.world_size} ranks")


def _check_only(scenario: "Scenario", batch: int, sample: int, parameter: int, element: int) -> None:
    """``only`` names a contribution that there is, and leaves no zeros whose sign depends on weights."""
    if scenario.probe != "linear":
        raise ValueError(f"only {(batch, sample, parameter, element)} takes the linear probe: others are not linear")
    if not (
        0 <= batch < len(scenario.microbatches)
        and 0 <= sample < scenario.samples
        and 0 <= parameter < len(scenario.parameters)
        and 0 <= element < scenario.parameters[parameter].count
    ):
        raise ValueError(f"only {(batch, sample, parameter, element)} is no contribution of this scenario")
