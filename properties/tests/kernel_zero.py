"""ZeRO's stages with kernels wherever they are: on CPU, in Triton's interpreter."""

from torch import nn

from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero3 import Zero3


class KernelZero1(Zero1):
    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb, kernels=True)


class KernelZero3(Zero3):
    def __init__(self, module: nn.Module, replicas: int = 1) -> None:
        super().__init__(module, replicas, kernels=True)
