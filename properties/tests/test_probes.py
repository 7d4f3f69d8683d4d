"""Looking at a tensor leaves no trace on it."""

import numpy as np
import pytest
import torch

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.ranks.probes import Probe, laid_out, to_numpy


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
    assert seen.base is None  # else bytes that the model holds would be counted twice
    assert (seen.shape, seen.dtype.name, seen.astype(float).tolist()) == (shape, dtype, wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_forward_that_is_compiled_or_transformed_evaluates_without_being_seen_to_read(dtype: str) -> None:
    scenario = Scenario(2, (Parameter((2,), dtype),), (Backward(((0,), (0,))), Finish()))
    probe = Probe(scenario, [np.array([1.0, 2.0])]).eval()
    ones, order = [torch.ones(2, dtype=getattr(torch, dtype))], (0,)
    with torch.no_grad():
        probe(ones, order)
        assert probe.read[0] is not None
        assert probe.read.pop(0).tolist() == [1.0, 2.0]
        compiled = torch.compile(probe, backend="eager")
        assert compiled(ones, order).item() == 3.0
        several = {"a": torch.ones(4, 2, dtype=ones[0].dtype)}
        mapped = torch.func.vmap(lambda values: torch.func.functional_call(probe, values, (ones, order)))
        assert mapped(several).tolist() == [2.0] * 4
        assert not probe.read
