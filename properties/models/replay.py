"""Replay each rank's own computations in one process, from the values at the beginning of each step."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from lockstep.oracle.events import SaveAndLoad, Step
from lockstep.properties.models import modules
from lockstep.properties.models.rank import backward, evaluate, random_numbers, seed_of
from lockstep.properties.models.scenario import Evaluation, Microbatch, ModelScenario
from lockstep.properties.ranks.probes import to_numpy


def _unpack(text: str, like: torch.Tensor) -> torch.Tensor:
    values = np.frombuffer(bytes.fromhex(text), np.uint8).copy()
    return torch.from_numpy(values).view(like.dtype).reshape(like.shape).to(like.device)


def replay(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Replay a run.

    The ``payload`` holds the ``scenario``, the ``parameters`` seen at the beginning and after each step, the
    ``gradients`` seen in each step, both packed, and the claim on ``buffers``. The result:

    - ``local``: the gradients of each use, or None, by micro-batch, rank and parameter.
    - ``buffers``: after each micro-batch; ``inputs``: the gradients of its inputs.
    - ``parameters``: the optimizer's result from the seen values, by step.
    - ``outputs``: by evaluation and rank; ``inner``: those of modules.
    - ``trained``: true for each trainable parameter.
    """
    request = json.loads(payload)
    scenario = ModelScenario.from_json(request["scenario"])
    replayed = Replay(scenario, request["buffers"])
    optimized = modules.build(scenario, 0)
    optimizer = modules.optimizer(scenario, optimized)
    replayed.begin(0, request["parameters"][0])
    after: list[list[Any]] = []
    for event in scenario.program:
        match event:
            case Microbatch():
                replayed.run(event)
            case Step():
                step = len(after)
                _set(optimized, request["parameters"][step], range(len(request["gradients"][step])))
                for parameter, seen in zip(optimized.parameters(), request["gradients"][step], strict=True):
                    parameter.grad = None if seen is None else _unpack(seen, parameter)
                optimizer.step()
                after.append([to_numpy(parameter) for parameter in optimized.parameters()])
                replayed.begin(step + 1, request["parameters"][step + 1])
            case SaveAndLoad():
                replayed.build_anew()
            case Evaluation():
                replayed.evaluate()
    trained = [parameter.requires_grad for parameter in optimized.parameters()]
    found = {"local": replayed.local, "buffers": replayed.buffers, "inputs": replayed.inputs, "trained": trained}
    return {**found, "outputs": replayed.outputs, "inner": replayed.inner, "parameters": after}


class Replay:
    """A model for each rank, with its buffers and its random numbers."""

    def __init__(self, scenario: ModelScenario, policy: str | None) -> None:
        self.scenario, self.policy, self.synchronized = scenario, policy, True
        self.models = [modules.build(scenario, rank, apart=True) for rank in range(scenario.world_size)]
        names = [name for name, _ in modules.build(scenario, 0).named_parameters()]
        uses = [modules.stands_for(scenario, name) for name, _ in self.models[0].named_parameters()]
        self.numbers = [names.index(name) for name in uses]  # the number of the parameter that each one is a use of
        if policy is not None:
            self._broadcast()
        self.random = []
        for rank in range(scenario.world_size):
            torch.manual_seed(seed_of(scenario, rank))
            self.random.append(random_numbers())
        self.local: list[list[list[list[Any]]]] = []
        self.buffers: list[list[list[Any]]] = []
        self.inputs: list[list[list[Any]]] = []
        self.outputs: list[list[list[Any]]] = []
        self.inner: list[list[list[tuple[str, Any]]]] = []

    def _broadcast(self) -> None:
        for model in self.models[1:]:
            for buffer, of_rank_zero in zip(model.buffers(), self.models[0].buffers(), strict=True):
                buffer.copy_(of_rank_zero)

    def begin(self, step: int, parameters: Sequence[str]) -> None:
        """Begin a step on every rank with these parameters, packed."""
        for model in self.models:
            _set(model, parameters, self.numbers)
            if self.scenario.yours:  # its owner decides which parameters are trained
                continue
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(self.scenario.trains(modules.stands_for(self.scenario, name), step))

    def run(self, event: Microbatch) -> None:
        """Run the next micro-batch on every rank."""
        if self.policy == "each" and self.synchronized:
            self._broadcast()
        self.synchronized = event.synchronize
        self.local.append([])
        self.buffers.append([])
        self.inputs.append([])
        for rank, model in enumerate(self.models):
            random_numbers(self.random[rank])
            self.inputs[-1].append([to_numpy(backward(self.scenario, model, rank, len(self.local) - 1))])
            self.random[rank] = random_numbers()
            gradients = [to_numpy(parameter.grad) for parameter in model.parameters()]
            pairs = list(zip(self.numbers, gradients, strict=True))
            self.local[-1].append([[g for n, g in pairs if n == number] for number in range(1 + max(self.numbers))])
            self.buffers[-1].append([to_numpy(buffer) for buffer in model.buffers()])
            model.zero_grad()

    def build_anew(self) -> None:
        """Construct the model anew and load it, as a caller does. A buffer that is in no state dict begins afresh."""
        fresh = dict(modules.build(self.scenario, 0).named_buffers())
        self.synchronized = True
        for model in self.models:
            saved = model.state_dict()
            for name, buffer in model.named_buffers():
                if name not in saved:
                    buffer.copy_(fresh[name])

    def evaluate(self) -> None:
        """Evaluate the model on every rank."""
        found = [evaluate(self.scenario, model, model, rank) for rank, model in enumerate(self.models)]
        self.outputs.append([outputs for outputs, _ in found])
        self.inner.append([inner for _, inner in found])


@torch.no_grad()
def _set(model: nn.Module, packed: Sequence[str], numbers: Sequence[int]) -> None:
    for parameter, number in zip(model.parameters(), numbers, strict=True):
        parameter.copy_(_unpack(packed[number], parameter))
