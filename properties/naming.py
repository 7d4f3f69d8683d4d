"""How parameters, elements, events and models are called when people read of them."""

from collections.abc import Sequence

import numpy as np

from lockstep.oracle.events import (
    Backward,
    Clip,
    EndJoin,
    Evaluate,
    Event,
    Finish,
    Freeze,
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
)
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.model import Hyperparameters
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import CANCELLING, MODES, SIGNS
from lockstep.properties.seen import OTHER_WEIGHTS

# What is said of what the caller does beside the events, see `properties.conditions.Conditions`.
SWAPS = f"an evaluation with other weights, {OTHER_WEIGHTS:g} everywhere, which the caller swaps in and out again"
GENERATORS = ("torch", "NumPy", "Python")  # whose random numbers a rank has of its own
ALONE = "rank {} alone evaluates the model, and takes its state dict"
# In what the model of one rank may differ from those of others; {}: which rank's, and in which parameter.
DIFFERENCES = {
    "number": "rank {}'s model has one parameter more",
    "size": "rank {}'s model has one element more in {}",
    "shape": "rank {}'s model has one dimension more in {}",
    "name": "rank {}'s model has another name for {}",
    "dtype": "rank {}'s model has {} in another dtype",
    "trained": "rank {}'s model does not train {}",
    "order": "rank {}'s model has its parameters in the reverse order",
}
GRADIENTS_OF = "the caller takes gradients by the coefficients of what the forward gives, and makes {} of them"
HALVES = "half of the loss the caller makes of the parameters itself, {} the forward"
DUPLICATES = "the caller makes a deep copy of the model, and evaluates each that it has made"
DROPS = "a forward, of NaN, whose loss is dropped"
MEASURES = "between its forward and its backward, a forward of all parameters without autograd, in the mode of training"
SAVES = "the state is saved, and nothing is done with it"
COPIES = "and then the caller puts copies in the place of the gradients"
METRIC = "and then the caller adds a number of its own up over the ranks"


def parameter_name(index: int) -> str:
    """a, b, c, ... for the parameters of a scenario."""
    return chr(ord("a") + index) if index < 26 else f"p{index}"


def difference(way: str, parameter: int, rank: int) -> str:
    """In what the rank's model differs: one of `DIFFERENCES`, and in which parameter."""
    return DIFFERENCES[way].format(rank, parameter_name(parameter))


def element_name(scenario: Scenario, parameter: int, element: int) -> str:
    """a[0], b[1,2], or a alone for a parameter of no dimensions. ``element``: its place in the flattened parameter."""
    place = (
        np.unravel_index(element, scenario.parameters[parameter].shape) if scenario.parameters[parameter].shape else ()
    )
    return parameter_name(parameter) + (f"[{','.join(str(int(index)) for index in place)}]" if place else "")


def names(order: tuple[int, ...]) -> str:
    """Parameters in a row."""
    return ", ".join(map(parameter_name, order))


def exchanged(roles: tuple[int, ...]) -> str:
    """Which ranks have the samples of others: ``roles``, of `properties.conditions.Conditions`."""
    others = [(rank, role) for rank, role in enumerate(roles) if rank != role]
    told = ["has the samples", *["those"] * len(others)]
    return ", ".join(f"rank {rank} {what} of rank {role}" for what, (rank, role) in zip(told, others, strict=False))


def model_words(scenario: Scenario) -> str:
    """The ranks and parameters of a scenario."""
    words = []
    for index, parameter in enumerate(scenario.parameters):
        traits = "" if parameter.trainable else ", frozen"
        traits += "" if parameter.layout == "contiguous" else f", {parameter.layout}"
        traits += "" if parameter.tied is None else f", another name of {parameter_name(parameter.tied)}"
        words.append(
            f"{parameter_name(index)} ({'x'.join(map(str, parameter.shape)) or 'scalar'} {parameter.dtype}{traits})"
        )
    ranks = f"{scenario.world_size} rank{'s' if scenario.world_size > 1 else ''}{_in_a_larger_world(scenario)}"
    return "; ".join([ranks, f"parameters {', '.join(words)}", *_options(scenario)])


def _in_a_larger_world(scenario: Scenario) -> str:
    """Of which world's ranks these are a group, if they are."""
    size, members = scenario.outsiders + scenario.world_size, scenario.members
    if not scenario.outsiders:
        return ""
    outside = [rank for rank in range(size) if rank not in members]
    inside, others = _ranks(members), _ranks(outside)
    take = "takes" if len(outside) == 1 else "take"
    return f", a group: {inside} of a world of {size}, whose {others} {take} no part (ranks here are the group's)"


def _ranks(ranks: Sequence[int]) -> str:
    """rank 0; ranks 1 and 2; ranks 1, 3 and 4; ranks 1 to 3."""
    *others, last = ranks
    if not others:
        return f"rank {last}"
    if len(others) > 1 and last - others[0] == len(others):
        return f"ranks {others[0]} to {last}"
    return f"ranks {', '.join(map(str, others))} and {last}"


def _options(scenario: Scenario) -> list[str]:
    """What is not as usual, in the order of the scenario's fields."""
    words = [] if scenario.probe == "linear" else [f"{scenario.probe} probe"]
    words += [] if scenario.mode == MODES[0] else ["trained in evaluation mode"]
    words += [f"contributions of {scenario.signs} sign"] if scenario.signs in SIGNS[1:] else []
    words += ["contributions that cancel"] if scenario.signs == CANCELLING else []
    words += [f"submodule of {names(unit)}" for unit in scenario.units]
    words += [f"{names(scenario.outside)} read outside of it"] if scenario.outside else []
    words += [] if scenario.replicas == 1 else [f"{scenario.replicas} replicas"]
    words += [] if scenario.bucket_cap is None else [f"bucket cap {scenario.bucket_cap} bytes"]
    if scenario.optimizer != "SGD" or scenario.hyperparameters != Hyperparameters():
        words.append(" with ".join([scenario.optimizer, *_settings(scenario.hyperparameters)]))
    words += ["group 0 empty"] if scenario.groups and not scenario.all_groups[0].parameters else []
    for group in scenario.groups:
        words.append(" with ".join([f"group of {names(group.parameters)}", *_settings(group.hyperparameters)]))
    words += ["an optimizer for each group"] if len(scenario.optimizers) > 1 else []
    words += ["float32 masters"] if scenario.masters else []
    if (scale := scenario.loss_scale) is not None:
        words.append(f"loss scale {scale.initial:g}, doubled after {scale.growth_interval} steps")
    if scenario.buffers:
        shapes = ", ".join("x".join(map(str, buffer.shape)) or "scalar" for buffer in scenario.buffers)
        words.append(f"buffers ({shapes})" + (" broadcast by rank 0" if scenario.broadcast_buffers else ""))
    return words


def _settings(values: Hyperparameters) -> list[str]:
    """The hyper-parameters that are given; none if none is."""
    given = [
        f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in vars(values).items()
        if value is not None
    ]
    return [", ".join(given)] if given else []


def event_words(scenario: Scenario, place: int, expected: Expectation | None = None) -> list[str]:
    """An event in words, a line for each rank where ranks differ. ``expected``: what must come of it, where known."""
    event: Event = scenario.program[place]
    match event:
        case Backward():
            batch = scenario.batch(place)
            orders = [scenario.order(batch, rank) for rank in range(scenario.world_size)]
            where = "" if event.synchronize else "inside no_sync, "
            if scenario.stays_in_no_sync(place - 1):
                before = "outer" if isinstance(scenario.program[place - 1], Raise) else "same"
                where = f"inside the {before} no_sync, "
            where += "after a nested one has ended, " if event.nested else ""
            if event.passes > 1:
                where += f"{'twice' if event.passes == 2 else f'{event.passes} times'} through one forward, "
            elif event.forwards > 1:
                where += "one for each of" if event.backwards > 1 else "after"
                where += f" {event.forwards} forwards, "
            over = [" and overflows" if rank in event.overflow else "" for rank in range(scenario.world_size)]
            if len(set(zip(orders, over, strict=True))) == 1:
                return [f"backward: {where}every rank reaches {names(orders[0])}{over[0]}"]
            return [
                f"backward: rank {rank} has run out of micro-batches"
                if rank in event.gone
                else f"backward: {where}rank {rank} reaches {names(orders[rank])}{over[rank]}"
                for rank in range(len(orders))
            ]
        case Finish():
            return ["finish the synchronization"]
        case Unscale():
            return ["unscale: gradients are divided by the loss scale"]
        case Clip():
            after = "; what becomes of them after an overflow is open" if scenario.overflowed(place) else ""
            return [f"clip: gradients to a global {event.norm_type:g}-norm of at most {event.max_norm:g}{after}"]
        case Step():
            some = scenario.standings[place].gradients
            whose = _whose_step(scenario, event)
            return [f"step{whose}{'' if some else ', without any gradient'}: {_step_words(scenario, place, expected)}"]
        case ZeroGrad():
            return ["zero_grad: gradients become " + ("None" if event.set_to_none else "zero")]
        case SetHyperparameters():
            whose = "every group" if event.group is None else f"group {event.group}"
            return [f"set for {whose}: {', '.join(_settings(event.values)) or 'nothing'}"]
        case Freeze():
            return [f"{'freeze' if event.frozen else 'train again'}: {names(event.parameters)}"]
        case Replace():
            return [f"replace: the caller assigns new tensors for {names(event.parameters)}, with the same values"]
        case Write():
            return [f"write: the caller writes into {names(event.parameters)} the negative of what is there"]
        case SaveAndLoad():
            kept = "everything" if event.optimizer else "the weights alone"
            return [f"save {kept}, build model and implementation anew, load"]
        case Save():
            return ["save everything, for later"]
        case Load():
            if event.optimizer:
                return ["load all that was saved into model and optimizer as they are there; gradients become None"]
            return ["load the saved weights into the model that is there; the rest begins afresh, without gradients"]
        case Evaluate():
            without = "in inference mode" if event.inference else "without autograd"
            mode = "in evaluation mode" if event.switch else "in the mode of training"
            inside = "" if event.synchronize else ", inside no_sync"
            return [f"evaluate: a forward of all parameters, {without} and {mode}{inside}"]
        case Join():
            told = "the number of all ranks" if event.divide_by == "world size" else "the number of ranks that remain"
            return [f"join: from here on ranks may run out of micro-batches; means divide by {told}"]
        case EndJoin():
            return ["end of join: every rank has run out, and has the parameters of the last; gradients become None"]
        case Raise():
            where = {"hook": "a ", "module": "a ", "evaluation": "an "}.get(event.where, "") + event.where
            who = "every rank" if event.rank is None else f"rank {event.rank}"
            inside = ", inside a no_sync that is nested in another" if event.nested else ", inside no_sync"
            inside = "" if event.synchronize else inside
            what = "a KeyboardInterrupt" if event.where == "no_sync" else "an error of the caller's"
            return [f"{what}, raised and caught on {who} in {where}{inside}"]


def _whose_step(scenario: Scenario, event: Step) -> str:
    """Of which of several optimizers it is, by their parameters."""
    if len(scenario.optimizers) == 1:
        return ""
    of = [number for (number,) in scenario.optimizers] if event.groups is None else event.groups
    return f" of the optimizer of {', then of that of '.join(names(scenario.all_groups[n].parameters) for n in of)}"


def _step_words(scenario: Scenario, place: int, expected: Expectation | None) -> str:
    """The optimizer and its learning rates, or that it is to be skipped; and what becomes of the loss scale."""
    event, settings = scenario.program[place], scenario.standings[place].settings
    of = event.groups if isinstance(event, Step) and event.groups is not None else range(len(scenario.all_groups))
    rates = [f"{settings[number].lr:g}" for number in of if scenario.all_groups[number].parameters]
    told = f"learning rate {rates[0]}" if len(set(rates)) == 1 else f"learning rates {', '.join(rates)}"
    words = f"{scenario.optimizer} with {told}"
    if expected is None or scenario.loss_scale is None:
        return words
    before, after = _loss_scale(scenario, place, expected), expected.loss_scales[place]
    if after < before:
        ranks = scenario.overflowed(place)
        words = f"to be skipped, as a gradient overflowed on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return words if after == before else f"{words}; the loss scale becomes {after:g}"


def _loss_scale(scenario: Scenario, place: int, expected: Expectation) -> float:
    """The loss scale when the event of that place comes."""
    assert scenario.loss_scale is not None
    scale = saved = scenario.loss_scale.initial
    for earlier, event in enumerate(scenario.program[:place]):
        match event:
            case SaveAndLoad(optimizer=False) | Load(optimizer=False):
                scale = scenario.loss_scale.initial
            case Save():
                saved = scale
            case Load():
                scale = saved
        scale = expected.loss_scales.get(earlier, scale)
    return scale
