"""Clipping against `torch.nn.utils.clip_grad_norm_`: the norm inside its enclosure, the gradients as told."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import lattice
from oracle.clipping import clip
from oracle.formats import FORMATS
from oracle.state import told_value
from properties.judge import holds
from properties.probes import to_numpy

INF = float("inf")


GRADIENTS = st.lists(st.lists(st.integers(-60, 60), min_size=1, max_size=6), min_size=1, max_size=4)
# Sums of squares 32**2 + 16**2 * 3 * 4 = 64**2 and so on: with these, norm and coefficient are exact.
SQUARES = st.sampled_from(([[32, 32, 32, 32]], [[16] * 4, [-32] * 3 + [-16] * 4 + [0]], [[64]], [[128, 0], [0]]))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", FORMATS)
@given(gradients=GRADIENTS | SQUARES, max_norm=st.sampled_from((0.5, 0.1, 1.0, 8.0, 64.0, 1e4)))
@settings(max_examples=40, deadline=None)
def test_clip_grad_norm_does_what_clipping_says(
    p: float, dtype: str, gradients: list[list[int]], max_norm: float
) -> None:
    tensors = [torch.nn.Parameter(torch.zeros(len(values), dtype=getattr(torch, dtype))) for values in gradients]
    for tensor, values in zip(tensors, gradients, strict=True):
        tensor.grad = torch.tensor(values, dtype=tensor.dtype)
    forms = [lattice.formats((dtype,), (len(values),)) for values in gradients]
    norm, form, clipped = clip([lattice.from_integers(values) for values in gradients], forms, max_norm, p)
    total = torch.nn.utils.clip_grad_norm_(iter(tensors), max_norm, p)
    assert total.dtype == getattr(torch, form)
    assert norm.contains(float(total))
    for tensor, value in zip(tensors, clipped, strict=True):
        told = told_value(value, dtype, (len(tensor),))
        seen = to_numpy(tensor.grad)
        assert holds(seen, told)
