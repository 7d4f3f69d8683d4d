"""Clipping against `torch.nn.utils.clip_grad_norm_`: the norm inside its enclosure, the gradients as told."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.oracle import lattice
from lockstep.oracle.clipping import clip
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.state import told_value
from lockstep.oracle.tests.examples import examples
from lockstep.properties.judging.judge import holds
from lockstep.properties.ranks.probes import to_numpy

INF = float("inf")


GRADIENTS = st.lists(st.lists(st.integers(-60, 60), min_size=1, max_size=6), min_size=1, max_size=4)
# Sums of squares 32**2 + 16**2 * 3 * 4 = 64**2 and so on: with these, norm and coefficient are exact.
SQUARES = st.sampled_from(([[32, 32, 32, 32]], [[16] * 4, [-32] * 3 + [-16] * 4 + [0]], [[64]], [[128, 0], [0]]))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", FORMATS)
@given(gradients=GRADIENTS | SQUARES, max_norm=st.sampled_from((0.5, 0.1, 1.0, 8.0, 64.0, 1e4)))
@examples(40)
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


def of_parts(tensors: list[list[torch.Tensor]], p: float, tensor_by_tensor: bool) -> torch.Tensor:
    """The norm of tensors that are cut over ranks: FSDP2 takes it over the ranks tensor by tensor, FSDP1 at the end."""

    def over_ranks(parts: list[torch.Tensor]) -> torch.Tensor:
        if p == INF:
            return torch.stack(parts).max()
        total = parts[0] ** p
        for part in parts[1:]:
            total = total + part**p
        return total ** (1.0 / p)

    norms = [[torch.linalg.vector_norm(part, p) for part in parts if part.numel() or p != INF] for parts in tensors]
    if tensor_by_tensor:
        return torch.linalg.vector_norm(torch.stack([over_ranks(parts) for parts in norms]), p)
    ranks = [[parts[rank] for parts in norms if rank < len(parts)] for rank in range(max(map(len, norms)))]
    return over_ranks([torch.linalg.vector_norm(torch.stack(of_rank), p) for of_rank in ranks if of_rank])


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", FORMATS)
@given(gradients=GRADIENTS | SQUARES, ranks=st.integers(1, 8), tensor_by_tensor=st.booleans())
@example([[41, 12, 3, 39, 3]], 3, True)  # 58, of whose parts the norms are no integers
@example([[1, 25, 25, 25, 25, 1, 25, 3]], 3, False)  # 56
@examples(60)
def test_the_norm_of_what_is_cut_over_ranks_is_enclosed(
    p: float, dtype: str, gradients: list[list[int]], ranks: int, tensor_by_tensor: bool
) -> None:
    forms = [lattice.formats((dtype,), (len(values),)) for values in gradients]
    whole = [lattice.from_integers(values) for values in gradients]
    norm, _, _ = clip(whole, forms, 1.0, p, ranks)
    cut = [list(torch.tensor(values, dtype=getattr(torch, dtype)).tensor_split(ranks)) for values in gradients]
    seen = float(of_parts(cut, p, tensor_by_tensor))
    overflows = dtype == "float16" and p in (2.0, 3.0) and seen == INF  # the powers of the parts' norms
    assert overflows or norm.contains(seen)


def test_one_rank_has_the_norm_of_a_square_exactly_and_more_ranks_may_not() -> None:
    values = [41, 12, 3, 39, 3]
    whole, forms = [lattice.from_integers(values)], [lattice.formats(("float32",), (5,))]
    (alone, *_), (cut, *_) = clip(whole, forms, 1.0, 2.0), clip(whole, forms, 1.0, 2.0, 3)
    assert alone.low == alone.high == 58
    assert cut.low < 58 < cut.high
    assert cut.high - cut.low < 58 * 2**-20


def in_python(norm: torch.Tensor, max_norm: float) -> float:
    """As Megatron-LM has it."""
    return max_norm / (norm.item() + 1e-6)


def inverted(norm: torch.Tensor, max_norm: float) -> float:
    """As DeepSpeed has it."""
    return 1.0 / ((norm.item() + 1e-6) / max_norm)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("wide", ["the dtype", torch.float32, torch.float64])
@given(
    gradients=GRADIENTS | SQUARES,
    max_norm=st.sampled_from((0.5, 0.1, 0.3, 0.7, 1.0, 8.0, 64.0, 1e4)),
    how=st.sampled_from((in_python, inverted, "divided by a tensor", "divided by a number", "a tensor")),
)
@example(gradients=[[7, 7]], max_norm=0.1, how="divided by a tensor")  # float32 rounds 0.1 up, and so half of it
@example(gradients=[[32]], max_norm=8.0, how=in_python)  # float64 holds 32 + 1e-6, and float32 does not
@example(gradients=[[0]], max_norm=64.0, how=inverted)  # 1e-6 / 64 is zero in float16
@example(gradients=[[1, 52]], max_norm=0.3, how="divided by a tensor")
@examples(30)
def test_other_ways_to_clip_are_enclosed(
    p: float, dtype: str, wide: object, gradients: list[list[int]], max_norm: float, how: object
) -> None:
    own = getattr(torch, dtype)
    into = own if not isinstance(wide, torch.dtype) else torch.promote_types(wide, own)
    tensors = [torch.tensor(values, dtype=own) for values in gradients]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(x.to(into), p) for x in tensors]), p)
    forms = [lattice.formats((dtype,), (len(values),)) for values in gradients]
    told, _, clipped = clip([lattice.from_integers(values) for values in gradients], forms, max_norm, p)
    assert told.contains(float(norm))
    assert told.contains(float(norm.to(own)))
    for tensor, value in zip(tensors, clipped, strict=True):
        if callable(how):
            seen = tensor * min(1.0, how(norm, max_norm))
        elif how == "a tensor":
            seen = (tensor * torch.clamp(max_norm / (norm + 1e-6), max=1.0)).to(own)
        else:
            divisor = torch.clamp((norm + 1e-6) / max_norm, min=1.0)
            seen = (tensor / (divisor if how == "divided by a tensor" else divisor.item())).to(own)
        assert holds(to_numpy(seen), told_value(value, dtype, (len(tensor),)))
