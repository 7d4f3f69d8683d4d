"""The expected values after an event, as lines of a script that compare."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.oracle.events import Clip, EndJoin, Finish, Load, SaveAndLoad, Step, Unscale, Write
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.intervals import Interval
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import ExpectedValue
from lockstep.properties.naming import parameter_name


def seen(
    scenario: Scenario,
    expected: Expectation | None,
    number: int,
    state: Callable[[int, str], str],
    parameters: str,
    looks: bool = True,
) -> list[str]:
    """The comparisons after the event of that number.

    ``state``: gives the code for the optimizer state of a tensor with a name. ``parameters``: the code for all values
    by name. Unless it ``looks``, only values are compared that need no collective.
    """
    event = scenario.program[number]
    if expected is None:
        kind, values = (
            ("gradient", "gradients()") if isinstance(event, (Finish, Unscale, Clip)) else ("value", parameters)
        )
        looked_at = isinstance(event, (Finish, Unscale, Clip, Step, Write, SaveAndLoad, Load, EndJoin))
        return [f'print(f"rank {{rank}}: the {kind}s are", {values}, flush=True)'] if looks and looked_at else []
    lines: list[str] = []
    if number in expected.norms:
        lines += compare("the norm", '{"all gradients": norm}', {"all gradients": expected.norms[number]})
    if looks and number in expected.gradients:
        lines += compare("the gradient", "gradients()", by_name(expected.gradients[number]))
    if looks and number in expected.parameters:
        lines += compare("the value", parameters, by_name(expected.parameters[number]))
    lines += _states(expected.states.get(number, ()), state) if looks else []
    if number in expected.loss_scales:
        scale = np.asarray(expected.loss_scales[number])
        lines += compare("the scale", '{"the loss": torch.tensor(scale)}', {"the loss": scale})
    if number in expected.buffers:
        wanted = [
            {f"buffer{index}": value.tolist() for index, value in enumerate(each)} for each in expected.buffers[number]
        ]
        lines += [f'compare("the value", dict(model.named_buffers()), {by_rank(wanted)}[rank])']
    return lines


def _states(states: Sequence[dict[str, ExpectedValue]], state: Callable[[int, str], str]) -> list[str]:
    """The comparisons of optimizer state and master weights. The step count may have any type."""
    lines: list[str] = []
    for name in dict.fromkeys(name for state in states for name in state):
        having = {index: told[name] for index, told in enumerate(states) if name in told}
        held = {parameter_name(index): state(index, name) for index in having}
        if name == "step":
            number = "None if (count := {}) is None else torch.as_tensor(count).float()"
            held = {parameter: number.format(value) for parameter, value in held.items()}
        values = ", ".join(f'"{parameter}": {value}' for parameter, value in held.items())
        lines += compare(name, f"{{{values}}}", {parameter_name(index): value for index, value in having.items()})
    return lines


def compare(what: str, values: str, wanted: dict[str, ExpectedValue]) -> list[str]:
    """A line that compares values with the expected ones, by name."""
    return [f'compare("{what}", {values}, { {name: _numbers(value) for name, value in wanted.items()} })']


def by_name(values: Sequence[ExpectedValue]) -> dict[str, ExpectedValue]:
    """The expected values of parameters, by name."""
    return {parameter_name(index): value for index, value in enumerate(values)}


def _numbers(value: ExpectedValue) -> Any:
    if value is None:
        return None
    if isinstance(value, Interval):
        # A list without elements would lose the number of dimensions.
        return (value.low.tolist(), value.high.tolist()) if value.low.size else value.low.tolist()
    return np.asarray(value, dtype=np.float64).tolist()


def by_rank(each: list[Any]) -> str:
    """A list with one line for each rank."""
    return "[\n" + "".join(f"    {item},  # rank {rank}\n" for rank, item in enumerate(each)) + "]"
