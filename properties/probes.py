"""The probe models of `oracle.program`, in torch: their gradients, and the order of their hooks, are the scenario's."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from oracle.program import Scenario
from properties.naming import parameter_name
from worlds.devices import place


class Probe(nn.Module):
    """The model of a scenario, holding the given initial values."""

    def __init__(self, scenario: Scenario, initial: Sequence[npt.NDArray[np.float64]]) -> None:
        super().__init__()
        self.kind, self.count = scenario.probe, len(scenario.parameters)
        for index, (parameter, values) in enumerate(zip(scenario.parameters, initial, strict=True)):
            tensor = torch.tensor(values, dtype=getattr(torch, parameter.dtype), device=place())
            self.register_parameter(parameter_name(index), nn.Parameter(tensor, requires_grad=parameter.trainable))

    def in_order(self) -> list[nn.Parameter]:
        """The parameters that it holds now, in the scenario's order: what `parameters` gives, many times faster."""
        return [getattr(self, parameter_name(index)) for index in range(self.count)]

    def forward(self, coefficients: Sequence[torch.Tensor], order: Sequence[int]) -> torch.Tensor:
        """The loss of one micro-batch. Backward reaches the parameters in the given ``order``.

        Autograd runs backward through the products latest first, so they are created in reverse; the order in which
        they are then added up changes nothing.
        """
        parameters = self.in_order()
        loss = torch.zeros((), device=place())
        for index in reversed(order):
            parameter, coefficient = parameters[index], coefficients[index]
            values = parameter if self.kind == "linear" else parameter * parameter / 2
            loss = loss + (coefficient * values).sum()
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
