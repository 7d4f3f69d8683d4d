"""How parameters, elements, events and models are called when people read of them."""

import numpy as np

from oracle.program import Backward, Event, Finish, Scenario, Step, ZeroGrad


def parameter_name(index: int) -> str:
    """a, b, c, ... for the parameters of a scenario."""
    return chr(ord("a") + index) if index < 26 else f"p{index}"


def element_name(scenario: Scenario, parameter: int, element: int) -> str:
    """a[0], b[1,2], or a alone for a parameter of no dimensions. ``element``: its place in the flattened parameter."""
    place = (
        np.unravel_index(element, scenario.parameters[parameter].shape) if scenario.parameters[parameter].shape else ()
    )
    return parameter_name(parameter) + (f"[{','.join(str(int(index)) for index in place)}]" if place else "")


def names(order: tuple[int, ...]) -> str:
    """Parameters in a row."""
    return ", ".join(map(parameter_name, order))


def model_words(scenario: Scenario) -> str:
    """The ranks and parameters of a scenario."""
    words = []
    for index, parameter in enumerate(scenario.parameters):
        frozen = "" if parameter.trainable else ", frozen"
        words.append(
            f"{parameter_name(index)} ({'x'.join(map(str, parameter.shape)) or 'scalar'} {parameter.dtype}{frozen})"
        )
    ranks = f"{scenario.world_size} rank{'s' if scenario.world_size > 1 else ''}"
    cap = "" if scenario.bucket_cap is None else f"; bucket cap {scenario.bucket_cap} bytes"
    probe = "" if scenario.probe == "linear" else f"; {scenario.probe} probe"
    return f"{ranks}; parameters {', '.join(words)}{cap}{probe}"


def event_words(scenario: Scenario, place: int) -> list[str]:
    """An event in words, a line for each rank where ranks differ."""
    event: Event = scenario.program[place]
    match event:
        case Backward():
            batch = sum(isinstance(earlier, Backward) for earlier in scenario.program[:place])
            orders = [scenario.order(batch, rank) for rank in range(scenario.world_size)]
            where = "" if event.synchronize else "inside no_sync, "
            if len(set(orders)) == 1:
                return [f"backward: {where}every rank reaches {names(orders[0])}"]
            return [f"backward: {where}rank {rank} reaches {names(order)}" for rank, order in enumerate(orders)]
        case Finish():
            return ["finish the synchronization"]
        case Step():
            return [f"step: SGD with learning rate {scenario.learning_rate}"]
        case ZeroGrad():
            return ["zero_grad: gradients become " + ("None" if event.set_to_none else "zero")]
        case _:
            return [repr(event)]
