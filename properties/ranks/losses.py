"""Losses that the caller computes itself from the parameters or from gradients."""

from collections.abc import Sequence

import torch

from lockstep.properties.naming import parameter_name
from lockstep.properties.ranks.probes import Home, Probe, products


def loss_of_parameters(probe: Probe, coefficients: Sequence[torch.Tensor], order: Sequence[int]) -> torch.Tensor:
    """The result of the probe's forward, computed from the current parameters.

    Backward also uses the values read here.
    """
    tensors = probe.in_order()
    read = Home()
    for index in order:
        setattr(read, parameter_name(index), tensors[index] * 1)
    return products((read,) * len(tensors), probe.kind, coefficients, order[::-1], None)


def loss_of_gradients(loss: torch.Tensor, coefficients: Sequence[torch.Tensor], order: Sequence[int]) -> torch.Tensor:
    """The same value as a probe's loss: the sum of coefficients times the gradients with respect to them.

    The gradients are computed here, and backward goes through them to the parameters.
    """
    if not order:
        return torch.zeros_like(loss)
    gradients = torch.autograd.grad(loss, [coefficients[index] for index in order], create_graph=True)
    total = torch.zeros_like(loss)
    for index, gradient in zip(order[::-1], gradients[::-1], strict=True):
        total = total + (coefficients[index].detach() * gradient).sum()
    return total
