"""Kernels that a user could hand over: plain torch, some right and some wrong, and not all that there could be."""

from typing import Any

import torch


class SomeKernels:
    """Packs in torch, without scaling, and takes norms of 32 bits without care for their range."""

    claims = {"kernels": True}

    @staticmethod
    def pack(tensors: list[torch.Tensor], bucket: torch.Tensor) -> None:
        if tensors:
            torch.cat([tensor.reshape(-1) for tensor in tensors], out=bucket)

    @staticmethod
    def unpack(bucket: torch.Tensor, tensors: list[torch.Tensor]) -> None:
        for tensor, part in zip(tensors, bucket.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    @staticmethod
    def norm(tensors: list[torch.Tensor]) -> Any:
        return sum(tensor.float().square().sum() for tensor in tensors) ** 0.5
