"""Static buckets that average by the kernels wherever they are: on a CPU, in Triton's interpreter."""

from typing import Any

from torch import nn

from lockstep.impls.static_buckets import StaticBuckets


class KernelBuckets(StaticBuckets):
    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb, kernels=True)


def averages(payload: str, rank: int, world_size: int) -> dict[str, Any]:
    """How often a kernel was launched for a bucket of 100 integers, and the average."""
    import torch

    from lockstep.impls import average
    from lockstep.impls.kernels import scale
    from lockstep.worlds import devices

    calls: list[float] = []
    real = scale.scale_
    scale.scale_ = lambda tensors, divisor: (calls.append(divisor), real(tensors, divisor=divisor))  # type: ignore
    try:
        sums = torch.arange(100, dtype=torch.float32, device=devices.place()) * 3
        average.average_(sums, 3, kernels=True)
    finally:
        scale.scale_ = real
    return {"calls": calls, "average": sums.cpu().numpy()}
