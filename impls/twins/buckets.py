"""Twins of the static buckets: other rules of what shares a bucket, when it goes out and what it is made of."""

import torch
from torch import nn

from lockstep.impls.static_buckets import StaticBuckets


class RegistrationOrder(StaticBuckets):
    """Fills buckets in registration order, though backward mostly comes from the other end."""

    odd = "buckets in registration order, so that the first to be ready waits for the last"
    claims = {**StaticBuckets.claims, "overlaps": False}

    @property
    def trained(self) -> list[nn.Parameter]:
        """In the order of which the base class takes the reverse."""
        return super().trained[::-1]


class NothingSentBeforeTheEnd(StaticBuckets):
    """Sends no bucket during backward: all of them in `finish_gradient_synchronization`."""

    odd = "no bucket goes out before backward is over"
    claims = {**StaticBuckets.claims, "overlaps": False, "callers_collectives": True}

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        """Nothing is said to be ready."""


class NothingLeftToSend(StaticBuckets):
    """Sends what still waits for members that took no part when backward is over, and not at the end."""

    odd = "a callback at the end of backward sends the buckets that still wait"
    claims = {**StaticBuckets.claims, "callers_collectives": True}

    _queued = False

    def prepare(self) -> None:
        """Of a backward that was cut short no callback has run."""
        super().prepare()
        self._queued = False

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        super()._on_gradient(parameter)
        if self.synchronize and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._on_end)

    def _on_end(self) -> None:
        self._queued = False
        if torch._C._current_autograd_node() is None:  # else of a backward inside another, as checkpointing has them
            self._send_the_rest()


class CopiesNotViews(StaticBuckets):
    """Hands out copies of the means; gradients are never views of a bucket."""

    odd = "gradients are copies, so that zeroing or dropping them leaves the buckets as they are"

    def finish_gradient_synchronization(self) -> None:
        """Parts each gradient from its bucket."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()


class ZerosForUnused(StaticBuckets):
    """The other policy: a parameter that no rank used gets a gradient of zeros."""

    odd = "a parameter that no rank used gets zeros"
    claims = {**StaticBuckets.claims, "unused": "zero"}

    def finish_gradient_synchronization(self) -> None:
        """Leaves no trained parameter without a gradient."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class SmallestFirst(StaticBuckets):
    """Fills buckets with the smallest parameters first, wherever they are registered."""

    odd = "buckets in the order of size"
    claims = {**StaticBuckets.claims, "overlaps": False}

    @property
    def trained(self) -> list[nn.Parameter]:
        """In the order of which the base class takes the reverse: largest first."""
        return sorted(super().trained, key=lambda parameter: -parameter.numel())
