"""Synchronizers whose ranks do not start alike (P4, P16)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.twins.starts import BroadcastsBuffers, StartsAtTheFirstForward

START = "test_every_rank_starts_with_the_parameters_of_rank_0"
BUFFERS = "test_buffers_are_those_of_rank_0_when_it_is_claimed"
REAL_BUFFERS = "test_buffers_begin_alike_and_follow_the_policy_claimed"
REPLICAS = "test_replicas_are_bitwise_equal_after_construction_and_after_every_step"


class NoBroadcast(StaticBuckets):
    """Leaves it to the caller to start all ranks alike."""

    known_fault = "the initial broadcast is missing"
    source = "recipe"
    killed_by = (START, REPLICAS)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        kept = [tensor.detach().clone() for tensor in module.parameters()]
        super().__init__(module, bucket_cap_mb)
        for parameter, own in zip(module.parameters(), kept, strict=True):
            parameter.data.copy_(own)


class FrozenNotBroadcast(StaticBuckets):
    """Broadcasts what it is going to train."""

    known_fault = "frozen parameters are left out of the initial broadcast"
    source = "M03 V https://github.com/speechbrain/speechbrain/pull/2814"
    killed_by = (START, REPLICAS)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        kept = {tensor: tensor.detach().clone() for tensor in module.parameters() if not tensor.requires_grad}
        super().__init__(module, bucket_cap_mb)
        for parameter, own in kept.items():
            parameter.data.copy_(own)


class BroadcastsFromTheLastRank(StaticBuckets):
    """Its root is the last rank."""

    known_fault = "the initial broadcast comes from another rank than 0"
    source = "I05 V https://github.com/horovod/horovod/pull/2685"
    killed_by = (START,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        last = dist.get_world_size() - 1
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.data, src=last)
        super().__init__(module, bucket_cap_mb)


class StartsWhatItTrains(StartsAtTheFirstForward):
    """Its first forward broadcasts what backward will need."""

    known_fault = "frozen parameters are left out of the broadcast in the first forward"
    source = "recipe: frozen parameters left out of a start that is put off"
    killed_by = (START, REPLICAS)

    @torch.no_grad()
    def start(self) -> None:
        """Broadcast only trained parameters."""
        for parameter in self.trained:
            whole = parameter.contiguous()
            dist.broadcast(whole, src=0)
            parameter.copy_(whole)


class StartsWhenItSynchronizes(StartsAtTheFirstForward):
    """Inside `no_sync` nothing is sent, and so the start is put off as well."""

    known_fault = "forwards inside no_sync run on each rank's own values until the first that synchronizes"
    source = "recipe: a start that is put off too far"
    killed_by = (START, "test_no_sync_accumulates_and_then_counts_once")

    def start(self) -> None:
        """Not now, perhaps."""
        if self.synchronize:
            super().start()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """It stays due."""
        loss = super().forward(*inputs, **named)
        self.due = self.due or not self.synchronize
        return loss


class BuffersNotBroadcast(StaticBuckets):
    """Broadcasts parameters and forgets that there are buffers."""

    known_fault = "buffers are left out of the initial broadcast"
    source = "recipe"
    killed_by = (BUFFERS,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        kept = [buffer.clone() for buffer in module.buffers()]
        super().__init__(module, bucket_cap_mb)
        for buffer, own in zip(module.buffers(), kept, strict=True):
            buffer.copy_(own)


class OnlyTheFirstBufferBroadcast(StaticBuckets):
    """Stops after one buffer."""

    known_fault = "only the first buffer is broadcast at the start"
    source = "recipe: buffers not broadcast"
    killed_by = (BUFFERS,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        kept = [buffer.clone() for buffer in module.buffers()]
        super().__init__(module, bucket_cap_mb)
        for buffer, own in list(zip(module.buffers(), kept, strict=True))[1:]:
            buffer.copy_(own)


class BroadcastsItsStateDict(StaticBuckets):
    """Broadcasts what a checkpoint would hold."""

    known_fault = "buffers that are not persistent are left out of the initial broadcast"
    source = "recipe: a start from the state dict, as in https://github.com/hiyouga/LlamaFactory/pull/10820"
    killed_by = (REAL_BUFFERS,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        kept = {name: buffer.clone() for name, buffer in module.named_buffers() if name not in module.state_dict()}
        super().__init__(module, bucket_cap_mb)
        for name, own in kept.items():
            module.get_buffer(name).copy_(own)


class BuffersThroughSixteenBits(StaticBuckets):
    """Sends buffers as it sends what may be rounded: in half of the bytes."""

    known_fault = "buffers are broadcast in bfloat16"
    source = "recipe: narrow wire"
    killed_by = (BUFFERS,)
    wire = torch.bfloat16

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        for buffer in module.buffers():
            buffer.copy_(buffer.to(self.wire))


class CountsThroughFloat32(BuffersThroughSixteenBits):
    """Packs all buffers into one message, of float32."""

    known_fault = "buffers are broadcast in float32, which loses digits of counts"
    source = "recipe: one buffer for all buffers"
    killed_by = (REAL_BUFFERS,)
    wire = torch.float32


class SwitchTurnsOffTheStart(StaticBuckets):
    """``broadcast_buffers=False`` keeps buffers from being broadcast at every forward, and at the start too."""

    known_fault = "broadcast_buffers=False drops the initial broadcast of buffers as well"
    source = "M02 V https://github.com/pytorch/pytorch/issues/111138"
    killed_by = (BUFFERS,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, broadcast_buffers: bool = True) -> None:
        kept = [buffer.clone() for buffer in module.buffers()]
        super().__init__(module, bucket_cap_mb)
        if not broadcast_buffers:
            for buffer, own in zip(module.buffers(), kept, strict=True):
                buffer.copy_(own)


class BuffersInEveryMicroBatch(BroadcastsBuffers):
    """Broadcasts buffers at every forward, inside `no_sync` as well."""

    known_fault = "buffers are broadcast in every micro-batch, at the full cost"
    source = "B26 V https://github.com/facebookresearch/fairscale/pull/1049"
    killed_by = (BUFFERS, "test_no_sync_accumulates_and_then_counts_once")

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Always due."""
        self.due = True
        return super().forward(*inputs, **named)
