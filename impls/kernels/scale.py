"""Average, scale and clip in place, in one pass over a bucket or a list, with the coefficient on the device."""

import torch

from lockstep.impls.kernels.norm import norm_and_coefficient
from lockstep.impls.kernels.pack import IN_PLACE, Tensors, check_coefficient, refuse_overlaps, rewrite
from lockstep.impls.kernels.table import Table


def scale_(tensors: Tensors, divisor: float = 1.0, scale: float = 1.0, coefficient: torch.Tensor | None = None) -> None:
    """Every element x <- RN(RN(RN(x / divisor) * scale) * coefficient), in float32, then rounded to its own dtype.

    ``divisor``: the number of ranks, after a sum over them; ``scale``: say 1 / k for k micro-batches;
    ``coefficient``: one float32 on the device, such as that of `impls.kernels.norm.clip_coefficient`.
    """
    table = tensors if isinstance(tensors, Table) else Table.of(tensors)
    if table.raw:
        raise ValueError("this table is for moving only: make one with raw=False to scale")
    if not table.tensors:
        return
    check_coefficient(coefficient, table.layout)
    refuse_overlaps(table)
    rewrite(table, 0, 0, IN_PLACE, divisor, scale, coefficient)


def average_and_clip_(tensors: Tensors, divisor: float, max_norm: float, scale: float = 1.0) -> torch.Tensor:
    """Averages summed gradients and clips them by the norm *of the averages*; returns that norm, on the device.

    Three launches, and no wait: the average is not stored before it is clipped.
    """
    table = tensors if isinstance(tensors, Table) else Table.of(tensors)
    found = norm_and_coefficient(table, max_norm, divisor, scale)
    scale_(table, divisor, scale, found[1])
    return found[0]
