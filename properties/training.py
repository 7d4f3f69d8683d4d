"""The caller's side of a training loop: the optimizer, fp32 masters and the loss scale, as `oracle.program` says."""

import copy
from typing import Any

import torch
from torch import nn

from oracle import hyperparameters
from oracle.events import SetHyperparameters
from oracle.optimizers import SGD, Adam
from oracle.program import Scenario
from properties.probes import Probe, to_numpy


class Training:
    """What a caller keeps from step to step."""

    def __init__(self, scenario: Scenario, probe: Probe) -> None:
        self.scenario, self.probe = scenario, probe
        self.settings = hyperparameters.at_the_start(scenario)
        self.scale = None if scenario.loss_scale is None else scenario.loss_scale.initial
        self.steps_since_overflow = 0
        self.unscaled = self.skip = False
        self.masters: dict[int, nn.Parameter] = {}
        self.optimizer: torch.optim.Optimizer | None = None  # made at the first step
        self.held: list[nn.Parameter] = []  # what it was made of, by parameter

    def unscale(self) -> None:
        """Divides every gradient by the scale, and sees whether all are finite."""
        gradients = [parameter.grad for parameter in self.probe.tensors() if parameter.grad is not None]
        for gradient in gradients:
            gradient /= self.scale
        self.skip = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        self.unscaled = True

    def step(self) -> None:
        """One step, or none after an overflow; then the scale follows."""
        if self.optimizer is None:
            self._make_optimizer()
        if self.scale is not None and not self.unscaled:
            self.unscale()
        if not self.skip:
            self._step()
        if self.scale is not None and self.scenario.loss_scale is not None:
            self.steps_since_overflow = 0 if self.skip else self.steps_since_overflow + 1
            if self.skip:
                self.scale /= 2
            elif self.steps_since_overflow == self.scenario.loss_scale.growth_interval:
                self.scale, self.steps_since_overflow = self.scale * 2, 0
            self.unscaled = self.skip = False

    def _step(self) -> None:
        assert self.optimizer is not None
        parameters = self.probe.in_order()
        for index, master in self.masters.items():
            gradient = parameters[index].grad
            master.grad = None if gradient is None else gradient.float()
        self.optimizer.step()
        with torch.no_grad():
            for index, master in self.masters.items():
                if master.grad is not None:
                    parameters[index].copy_(master)

    def _make_optimizer(self) -> None:
        parameters = self.held = self.probe.in_order()
        if self.scenario.masters:
            for index, parameter in enumerate(parameters):
                if parameter.dtype.itemsize == 2 and self.scenario.parameters[index].tied is None:
                    self.masters[index] = nn.Parameter(parameter.detach().float())
        groups = [
            {"params": [self.masters.get(index, parameters[index]) for index in group.parameters], **options(values)}
            for group, values in zip(self.scenario.all_groups, self.settings, strict=True)
        ]
        # Without a step size of the group, torch's default would do; every group has one.
        self.optimizer = getattr(torch.optim, self.scenario.optimizer)(groups, lr=self.scenario.learning_rate)

    def replace(self, tensor: int, parameter: nn.Parameter) -> None:
        """Another tensor takes the place of one of the model's: its master, if it has one, and state begin afresh."""
        if self.optimizer is None:
            return
        old = self.masters.get(tensor, self.held[tensor])
        if tensor in self.masters:
            self.masters[tensor] = nn.Parameter(parameter.detach().float())
        self.held[tensor] = parameter
        new = self.masters.get(tensor, parameter)
        self.optimizer.state.pop(old, None)
        for group in self.optimizer.param_groups:
            group["params"] = [new if each is old else each for each in group["params"]]

    def set(self, event: SetHyperparameters) -> None:
        """Changes the hyper-parameters of one group, or of all."""
        self.settings = hyperparameters.after(self.settings, event)
        if self.optimizer is not None:
            for group, values in zip(self.optimizer.param_groups, self.settings, strict=True):
                group.update(options(values))

    def save(self) -> dict[str, Any]:
        """The state of everything here."""
        if self.optimizer is None:
            self._make_optimizer()
        assert self.optimizer is not None
        masters = {index: master.detach() for index, master in self.masters.items()}
        saved = {"optimizer": self.optimizer.state_dict(), "masters": masters, "settings": self.settings}
        return copy.deepcopy({**saved, "scale": self.scale, "steps_since_overflow": self.steps_since_overflow})

    def load(self, saved: dict[str, Any]) -> None:
        """Takes up what `save` gave."""
        self._make_optimizer()
        assert self.optimizer is not None
        with torch.no_grad():
            for index, master in self.masters.items():
                master.copy_(saved["masters"][index])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.settings, self.scale = saved["settings"], saved["scale"]
        self.steps_since_overflow = saved["steps_since_overflow"]

    def states(self) -> list[dict[str, Any]]:
        """What the optimizer holds for each parameter, and its master."""
        if self.optimizer is None:
            return [{} for _ in self.scenario.parameters]
        found = []
        for index, parameter in enumerate(self.probe.in_order()):
            held = self.masters.get(index, parameter)
            state = self.optimizer.state.get(held, {}) if self.scenario.parameters[index].tied is None else {}
            seen = {name: to_numpy(torch.as_tensor(value)) for name, value in state.items() if value is not None}
            if index in self.masters:
                seen["master"] = to_numpy(held)
            found.append(seen)
        return found


def options(values: SGD | Adam) -> dict[str, Any]:
    """Settings of the oracle as torch's optimizers take them; which of Adam and AdamW it is says their class."""
    return {name: value for name, value in vars(values).items() if name != "decoupled"}
