"""ZeRO-2: gradients are sharded too. Each is freed once its slice is reduced, while backward goes on.

A bucket is sent when all its members are final *and every earlier bucket was sent*, so all ranks send the same buckets
in the same order. Buckets with members that took no part are sent after backward, by the method that finishes the
synchronization. So the caller's own collectives in the same group come before backward or after the synchronization.
One bucket is in flight at a time, and is the only memory that is held beside the slices.
"""

from typing import Any

from torch import nn

from lockstep.impls.sharded import IN_BUCKETS, ShardedDataParallel, buckets
from lockstep.impls.shards import Flat, Reduction
from lockstep.impls.wrapper import Group


class Zero2(ShardedDataParallel):
    """Buckets of one dtype, each cut over all ranks. ``kernels``: see `impls.average`."""

    claims = {**IN_BUCKETS, "callers_collectives": False, "stage": 2}

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float = 25.0,
        kernels: bool | None = None,
        process_group: Group = None,
    ) -> None:
        super().__init__(module, buckets(module, bucket_cap_mb * 2**20), kernels, process_group=process_group)
        self._hooked: set[nn.Parameter] = set()
        self._to_send: list[Flat] = []  # buckets not yet sent, in order; empty before a synchronizing forward
        self._waiting_for: set[nn.Parameter] = set()  # whose gradients are not yet final
        self._in_flight: Reduction | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward; one that synchronizes starts afresh, also after a backward cut short."""
        for parameter in self.flat_of:
            if parameter.requires_grad and parameter not in self._hooked:
                self._hooked.add(parameter)
                parameter.register_post_accumulate_grad_hook(self._on_gradient)
        if self.synchronize:
            if self._in_flight is not None:
                self._in_flight.wait()
                self._in_flight = None
            self._to_send = self.trained_flats()
            self._waiting_for = {member for member in self.flat_of if member.requires_grad}
        return super().forward(*inputs, **named)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if self.synchronize:
            self._waiting_for.discard(parameter)
            while self._to_send and self._waiting_for.isdisjoint(self._to_send[0].members):
                self._send(self._to_send.pop(0))

    def _send(self, flat: Flat) -> None:
        """Settle the slice of the bucket before this one, send this one, and free its whole gradients."""
        self._settle()
        self._in_flight = self.reduce(flat)
        for member in flat.members:
            member.grad = None

    def _settle(self) -> None:
        if self._in_flight is not None:
            self.settle(self._in_flight)
            self._in_flight = None

    def finish_gradient_synchronization(self) -> None:
        """Send the buckets that still wait for members that took no part."""
        while self._to_send:
            self._send(self._to_send.pop(0))
        self._settle()
