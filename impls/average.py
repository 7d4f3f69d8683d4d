"""The mean over ranks after a sum over them: by the kernels on CUDA, by plain torch elsewhere.

On exact data both give the same bits; on other data they may differ. torch divides CUDA tensors by a number as a
product with its rounded reciprocal, and the kernel divides.
"""

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # what kernels compute with; float64 is left to torch


def average_(sums: torch.Tensor, ranks: int, kernels: bool | None = None) -> None:
    """sums <- sums / ranks. ``kernels``: None, on CUDA only; True, everywhere (Triton's interpreter on CPU); False."""
    wanted = sums.is_cuda if kernels is None else kernels
    if wanted and sums.dtype in DTYPES:
        from lockstep.impls.kernels.scale import scale_  # Triton is imported by those who use it

        scale_([sums], divisor=ranks)
    else:
        sums /= ranks
