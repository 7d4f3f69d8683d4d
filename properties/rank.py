"""What every rank runs: the scenario's program on an implementation, observed from outside.

The worlds call these functions by name; in comes JSON, out go plain data and NumPy arrays.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from oracle.fingerprint import coefficients, initial_parameters
from oracle.program import Backward, Finish, Scenario, Step, ZeroGrad
from properties import adapter
from properties.probes import Probe, to_numpy


@lru_cache(maxsize=8)
def _read(payload: str) -> tuple[str, Scenario]:
    """The implementation's name and the scenario; read once for all ranks of the simulated world."""
    request = json.loads(payload)
    return request["implementation"], Scenario.from_json(request["scenario"])


def run_program(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Runs a program. ``payload``: the implementation's name and the scenario.

    Returns, keyed by the event's place in the program, ``gradients`` after each Finish and ``parameters`` after each
    Step, as lists of arrays (None: no gradient); ``initial`` parameters after construction; and ``hooks``: for each
    micro-batch the parameters in the order in which their gradients became final.
    """
    name, scenario = _read(payload)
    probe = Probe(scenario, initial_parameters(scenario, rank))
    hooks: list[list[int]] = []
    for index, parameter in enumerate(probe.in_order()):
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: hooks[-1].append(index))
    place = -1
    try:
        wrapped = adapter.construct(name, probe, scenario.bucket_cap)
        seen: dict[str, Any] = {"initial": _values(probe), "gradients": {}, "parameters": {}, "hooks": hooks}
        batches = iter(enumerate(coefficients(scenario, rank)))
        for place, event in enumerate(scenario.program):
            match event:
                case Backward():
                    batch, numbers = next(batches)
                    hooks.append([])
                    inputs = [
                        torch.tensor(values, dtype=parameter.dtype, device=parameter.device)
                        for values, parameter in zip(numbers, probe.in_order(), strict=True)
                    ]
                    with adapter.synchronizing(wrapped, event.synchronize):
                        wrapped(inputs, scenario.order(batch, rank)).backward()
                case Finish():
                    adapter.finish(wrapped)
                    seen["gradients"][place] = [to_numpy(parameter.grad) for parameter in probe.in_order()]
                case Step():
                    torch.optim.SGD(probe.in_order(), lr=scenario.learning_rate).step()
                    seen["parameters"][place] = _values(probe)
                case ZeroGrad():
                    for parameter in probe.in_order():
                        if event.set_to_none:
                            parameter.grad = None
                        elif parameter.grad is not None:
                            parameter.grad.zero_()
    except Exception as error:
        where = "while it was constructed" if place < 0 else f"in event {place}, {scenario.program[place]!r}"
        error.add_note(where)
        raise
    return seen


def _values(probe: Probe) -> list[Any]:
    return [to_numpy(parameter) for parameter in probe.in_order()]


def describe(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What can be told of an implementation (see `adapter.describe`); ``payload`` is its name."""
    return adapter.describe(json.loads(payload))
