"""Names of parameters, elements and models in reports. Events have theirs in `properties.events`."""

from collections.abc import Sequence

import numpy as np

from lockstep.oracle.caller import WAYS, Caller, Differing
from lockstep.oracle.model import Hyperparameters
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import CANCELLING, MODES, SIGNS

# Words on the caller's habits beside the events, see `properties.conditions.Conditions`.
GENERATORS = ("torch", "NumPy", "Python")  # the generators of which each rank has its own
# The differences that one rank's model may have. The {} stand for the rank and the parameter.
_DIFFERENCES = {
    "number": "rank {}'s model has one parameter more",
    "size": "rank {}'s model has one element more in {}",
    "shape": "rank {}'s model has one dimension more in {}",
    "name": "rank {}'s model has another name for {}",
    "dtype": "rank {}'s model has {} in another dtype",
    "trained": "rank {}'s model does not train {}",
    "order": "rank {}'s model has its parameters in the reverse order",
}
if _DIFFERENCES.keys() != {*WAYS}:
    raise ValueError(f"a model may differ in {', '.join(WAYS)}, and there are words for {', '.join(_DIFFERENCES)}")
UNITS_HOOKED = (
    "one on it multiplies what units are given by -1/4, and theirs multiply that by 2, what they give by 2, and what "
    "comes back to them by -1"
)
SAVES = "the state is saved, and nothing is done with it"


def parameter_name(index: int) -> str:
    """The name of a parameter of a scenario: a, b, c, ..."""
    return chr(ord("a") + index) if index < 26 else f"p{index}"


def difference(differs: Differing) -> str:
    """The difference of a rank's model from the others' in words."""
    return _DIFFERENCES[differs.way].format(differs.rank, parameter_name(differs.parameter))


def element_name(scenario: Scenario, parameter: int, element: int) -> str:
    """The name of an element: a[0], b[1,2], or a for a parameter without dimensions.

    ``element``: its index in the flattened parameter.
    """
    place = (
        np.unravel_index(element, scenario.parameters[parameter].shape) if scenario.parameters[parameter].shape else ()
    )
    return parameter_name(parameter) + (f"[{','.join(str(int(index)) for index in place)}]" if place else "")


def names(order: tuple[int, ...]) -> str:
    """The names of several parameters."""
    return ", ".join(map(parameter_name, order))


def exchanged(roles: tuple[int, ...]) -> str:
    """The ranks that use the samples of other ranks: the ``roles`` of `oracle.setup.Setup`."""
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
    """The group of ranks within a larger world, in words; empty if it is the whole world."""
    size, members = scenario.outsiders + scenario.world_size, scenario.members
    if not scenario.outsiders:
        return ""
    outside = [rank for rank in range(size) if rank not in members]
    inside, others = _ranks(members), _ranks(outside)
    take = "takes" if len(outside) == 1 else "take"
    return f", a group: {inside} of a world of {size}, whose {others} {take} no part (ranks here are the group's)"


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks in words: rank 0; ranks 1 and 2; ranks 1, 3 and 4; ranks 1 to 3."""
    *others, last = ranks
    if not others:
        return f"rank {last}"
    if len(others) > 1 and last - others[0] == len(others):
        return f"ranks {others[0]} to {last}"
    return f"ranks {enumerated([*map(str, ranks)])}"


def _options(scenario: Scenario) -> list[str]:
    """The unusual options, in the order of the scenario's fields."""
    words = [] if scenario.probe == "linear" else [f"{scenario.probe} probe"]
    words += [] if scenario.mode == MODES[0] else ["trained in evaluation mode"]
    words += [f"contributions of {scenario.signs} sign"] if scenario.signs in SIGNS[1:] else []
    words += ["contributions that cancel"] if scenario.signs == CANCELLING else []
    words += [f"submodule of {names(unit)}" for unit in scenario.units]
    words += [f"{names(scenario.outside)} read outside of it"] if scenario.outside else []
    words += [] if scenario.replicas == 1 else [f"{scenario.replicas} replicas"]
    words += [] if scenario.bucket_cap is None else [f"bucket cap {scenario.bucket_cap} bytes"]
    if scenario.optimizer != "SGD" or scenario.hyperparameters != Hyperparameters():
        words.append(" with ".join([scenario.optimizer, *settings_words(scenario.hyperparameters)]))
    words += ["group 0 empty"] if scenario.groups and not scenario.all_groups[0].parameters else []
    for group in scenario.groups:
        words.append(" with ".join([f"group of {names(group.parameters)}", *settings_words(group.hyperparameters)]))
    words += ["an optimizer for each group"] if len(scenario.optimizers) > 1 else []
    words += ["float32 masters"] if scenario.masters else []
    if (scale := scenario.loss_scale) is not None:
        words.append(f"loss scale {scale.initial:g}, doubled after {scale.growth_interval} steps")
    if scenario.buffers:
        shapes = ", ".join(
            ("x".join(map(str, buffer.shape)) or "scalar") + ", reassigned by forward" * buffer.reassigned
            for buffer in scenario.buffers
        )
        words.append(f"buffers ({shapes})" + (" broadcast by rank 0" if scenario.broadcast_buffers else ""))
    words += _caller(scenario.caller, bool(scenario.units))
    words += [] if scenario.differs is None else [difference(scenario.differs)]
    words += [exchanged(scenario.roles)] if scenario.roles else []
    words += [f"parameters are registered in the order {names(scenario.registered)}"] if scenario.registered else []
    return words


def _caller(caller: Caller, units: bool) -> list[str]:
    """The caller's habits. ``units``: its model has units."""
    words = []
    another = "another such model, {}with gradients of the other sign, {}"
    if where := caller.beside:
        words += [another.format("a window ahead and ", f"takes turns with it, right {where} it")]
    if where := caller.joint:
        jointly = f"runs the same: its forwards come right {where} this one's, and one backward is of both losses"
        words += [another.format("", jointly)]
    words += [f"the optimizer is made right {caller.makes_optimizer} wrapping"] if caller.makes_optimizer else []
    words += ["parameters and state dict are those that the wrapper tells of itself"] * caller.asks_the_wrapper
    words += ["random numbers are seeded before wrapping, on each rank otherwise"] * caller.seeded
    hooks = []
    if caller.hooked:
        hooks += [f"a hook of the caller's on each parameter multiplies what comes to it by {2**caller.hooked}"]
    if caller.module_hooked:
        hooks += [f"a hook of the caller's on the model multiplies each loss by {2**caller.module_hooked}"]
        hooks += [UNITS_HOOKED] * units
    if caller.hooked_before:
        hooks[-1] += ", from before wrapping on"
    words += hooks
    kept = "hooks of the caller's, from after wrapping on, keep the gradients that have accumulated"
    return words + [kept] * caller.keeps_gradients


def settings_words(values: Hyperparameters) -> list[str]:
    """The hyper-parameters that are set; empty if none is."""
    given = [
        f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in vars(values).items()
        if value is not None
    ]
    return [", ".join(given)] if given else []


def enumerated(words: Sequence[str]) -> str:
    """At least one word in a sentence: "A", "A and B", "A, B and C"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
