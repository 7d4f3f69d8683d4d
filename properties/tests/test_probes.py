"""Looking at a tensor leaves no trace on it."""

import pytest
import torch

from properties.probes import laid_out, to_numpy


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
def test_what_is_seen_of_a_tensor_is_a_copy_and_its_storage_can_still_be_freed(
    shape: tuple[int, ...], dtype: str
) -> None:
    count = torch.Size(shape).numel()
    numbers = torch.arange(count, dtype=torch.float64).reshape(shape)
    wanted = numbers.tolist()
    tensor = laid_out(numbers.to(getattr(torch, dtype)), "transposed").requires_grad_()
    seen = to_numpy(tensor)
    tensor.detach().fill_(-1)
    tensor.untyped_storage().resize_(0)
    assert seen is not None
    assert seen.flags.c_contiguous
    assert (seen.shape, seen.dtype.name, seen.astype(float).tolist()) == (shape, dtype, wanted)
