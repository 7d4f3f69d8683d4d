"""The probe models of `oracle.program`, in torch: their gradients, and the order of their hooks, are the scenario's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from oracle.program import Scenario
from oracle.state import initial_buffers
from properties.naming import parameter_name
from worlds.devices import place


class CallersError(Exception):
    """What a Raise raises."""


class _Fails(torch.autograd.Function):
    """The identity, whose backward raises."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise CallersError("in backward")


class Probe(nn.Module):
    """The model of a scenario, holding the given initial values, and the buffers of a rank.

    ``increment``: what forward adds to its buffers. ``fails``: where the next forward or backward raises. ``frozen``:
    the parameters that are not trained; forward reads them all the same.
    """

    def __init__(self, scenario: Scenario, initial: Sequence[npt.NDArray[np.float64]], rank: int = 0) -> None:
        super().__init__()
        self.kind, self.count, self.buffer_count = scenario.probe, len(scenario.parameters), len(scenario.buffers)
        self.increment, self.fails, self.frozen = 0, "", frozenset[int]()
        for index, (parameter, values) in enumerate(zip(scenario.parameters, initial, strict=True)):
            if parameter.tied is None:
                tensor = torch.tensor(values, dtype=getattr(torch, parameter.dtype), device=place())
                made = nn.Parameter(tensor, requires_grad=parameter.trainable)
            else:
                made = getattr(self, parameter_name(parameter.tied))
            self.register_parameter(parameter_name(index), made)
        for index, buffer in enumerate(initial_buffers(scenario, rank)):
            self.register_buffer(f"buffer{index}", torch.tensor(buffer, device=place()))

    def register_in(self, order: Sequence[int]) -> None:
        """Registers the parameters in another order, under the same names."""
        made = self.in_order()
        for index in order:
            delattr(self, parameter_name(index))
            self.register_parameter(parameter_name(index), made[index])

    def in_order(self) -> list[nn.Parameter]:
        """The parameters that it holds now, in the scenario's order: what `parameters` gives, many times faster."""
        return [getattr(self, parameter_name(index)) for index in range(self.count)]

    def tensors(self) -> list[nn.Parameter]:
        """The same, each tensor once, whatever number of names it has."""
        return list(dict.fromkeys(self.in_order()))

    def forward(self, coefficients: Sequence[torch.Tensor], order: Sequence[int]) -> torch.Tensor:
        """The loss of one micro-batch. Backward reaches the parameters in the given ``order``.

        Autograd runs backward through the products latest first, so they are created in reverse; the order in which
        they are then added up changes nothing.
        """
        if self.fails == "forward":
            raise CallersError("in forward")
        for index in range(self.buffer_count):
            getattr(self, f"buffer{index}").add_(self.increment)
        parameters = self.in_order()
        loss = torch.zeros((), device=place())
        for index in reversed(order):
            parameter, coefficient = parameters[index], coefficients[index]
            if self.fails == "backward" and index == order[min(1, len(order) - 1)]:
                parameter = _Fails.apply(parameter)
            values = parameter if self.kind == "linear" else parameter.square() / 2
            loss = loss + (coefficient * values).sum()
        for index in self.frozen:
            loss = loss + parameters[index].sum()
        return loss


def to_numpy(tensor: torch.Tensor | None) -> npt.NDArray[np.generic] | None:
    """A copy of the tensor's values in their own dtype."""
    if tensor is None:
        return None
    values = tensor.detach().cpu()
    if values.dtype is torch.bfloat16:
        return values.view(torch.uint16).numpy().view(ml_dtypes.bfloat16).copy()
    copy: npt.NDArray[np.generic] = values.numpy().copy()
    return copy
