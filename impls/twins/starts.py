"""Twins that bring ranks to one start, and keep track of `no_sync`, in unusual ways."""

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.wrapper import broadcast_from_rank_zero


class SumsOfZeros(StaticBuckets):
    """Starts with a sum over ranks to which all but rank 0 give zeros."""

    odd = "the initial broadcast is an all-reduce of rank 0's values and zeros"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        with torch.no_grad():
            for tensor in (*module.buffers(), *module.parameters()):
                if dist.get_rank():
                    tensor.zero_()
                whole = tensor.clone(memory_format=torch.contiguous_format)
                dist.all_reduce(whole)
                tensor.copy_(whole)
        super().__init__(module, bucket_cap_mb)


class LaysAllInOnePiece(StaticBuckets):
    """Has all parameters of a dtype in one piece of memory, which is broadcast as such."""

    odd = "the constructor moves parameters, which stay the same tensors, to new memory"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        for dtype in dict.fromkeys(parameter.dtype for parameter in module.parameters()):
            members = [each for each in module.parameters() if each.dtype == dtype]
            piece = torch.cat([each.detach().flatten() for each in members])
            dist.broadcast(piece, src=0)
            for each, part in zip(members, piece.split([each.numel() for each in members]), strict=True):
                each.data = part.view(each.shape)
        super().__init__(module, bucket_cap_mb)


class GathersEveryStart(StaticBuckets):
    """Gathers every rank's initial values and takes the first."""

    odd = "the initial broadcast is an all-gather of which rank 0's part is kept"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                flat = tensor.flatten()
                parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, flat)
                tensor.copy_(parts[0].view_as(tensor))
        super().__init__(module, bucket_cap_mb)


class StartsAtTheFirstForward(StaticBuckets):
    """Leaves every rank its own values until it is called."""

    odd = "the initial broadcast is part of the first forward, in training or not, inside no_sync or not"
    claims = {**StaticBuckets.claims, "equal_from": "first forward"}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        tensors = (*module.parameters(), *module.buffers())
        own = [tensor.detach().clone() for tensor in tensors]
        super().__init__(module, bucket_cap_mb)
        for tensor, values in zip(tensors, own, strict=True):
            tensor.data.copy_(values)
        self.due = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Broadcasts first, if that is due."""
        if self.due:
            self.start()
            self.due = False
        return super().forward(*inputs, **named)

    def start(self) -> None:
        """Makes all ranks equal."""
        broadcast_from_rank_zero(self.module)


class CountsDepth(StaticBuckets):
    """Counts how deep inside `no_sync` it is; ``synchronize`` follows from that."""

    odd = "no_sync is a counter"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._depth = 0

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """One deeper inside."""
        self._depth += 1
        self.synchronize = False
        try:
            yield
        finally:
            self._depth -= 1
            self.synchronize = self._depth == 0


class BroadcastsBuffers(StaticBuckets):
    """Makes buffers rank 0's again at the first forward and at each that follows a synchronizing one."""

    odd = "buffers are broadcast at forward, in one flat tensor for each dtype"
    claims = {**StaticBuckets.claims, "survives_errors": False, "buffers": "each"}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, broadcast_buffers: bool = True) -> None:
        super().__init__(module, bucket_cap_mb)
        self.due = self._wanted = broadcast_buffers

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Broadcasts first, if that is due."""
        if self.due:
            dtypes = sorted({buffer.dtype for buffer in self.module.buffers()}, key=str)
            for buffers in ([b for b in self.module.buffers() if b.dtype is dtype] for dtype in dtypes):
                flat = torch.cat([buffer.flatten() for buffer in buffers])
                dist.broadcast(flat, src=0)
                for buffer, part in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
                    buffer.copy_(part.view_as(buffer))
        self.due = self._wanted and self.synchronize
        return super().forward(*inputs, **named)


class DrawsFromItsOwn(StaticBuckets):
    """Draws where it begins to fill its buckets, from a generator that it has made, and in a fork of the caller's."""

    odd = "draws random numbers, and the caller's go on as if it had not"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            first = torch.rand(())
        own = torch.rand((), generator=torch.Generator().manual_seed(0))
        assert first == own
        super().__init__(module, bucket_cap_mb)


class ComparesModels(StaticBuckets):
    """Compares what ranks have before it wraps it: one number, which stands for all that is to be alike."""

    odd = "asks all ranks whether their models are alike, and refuses on all if they are not"
    claims = {**StaticBuckets.claims, "compares_models": True}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        told = [(name, each.shape, each.dtype, each.requires_grad) for name, each in module.named_parameters()]
        number = zlib.crc32(repr(told).encode())
        both = torch.tensor([number, -number])
        dist.all_reduce(both, dist.ReduceOp.MAX)
        if both[0] != -both[1]:
            raise ValueError("ranks have models that differ: in number, names, shapes or dtypes, or in what is trained")
        super().__init__(module, bucket_cap_mb)
