"""The coefficient that kernels are held to is that of torch's `clip_grad_norm_`, for norms that are no numbers too."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.properties.kernels.reference import coefficient_of


@pytest.mark.parametrize("norm", [math.nan, math.inf, 0.0, 0.5, 4.0])
@pytest.mark.parametrize("max_norm", [1.0, 2.0, math.inf])
def test_gradients_are_torchs(norm: float, max_norm: float) -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([norm, 0.0, -0.0])
    with np.errstate(invalid="ignore"):
        wanted = parameter.grad.numpy() * np.float32(coefficient_of(norm, max_norm))
    found = nn.utils.clip_grad_norm_(parameter, max_norm)
    assert np.array_equal(found.item(), norm, equal_nan=True)
    assert np.array_equal(parameter.grad.numpy(), wanted, equal_nan=True)
