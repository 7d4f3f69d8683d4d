"""Synchronizers between whose collectives those of the caller do not fit (P5)."""

from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.end_of_backward import AtTheEndOfBackward
from lockstep.impls.main_grad_buckets import MainGradBuckets
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.zero2 import Zero2

CALLERS = ("test_the_caller_may_have_collectives_of_its_own_right_after_a_backward",)


class SendsTheRestWhenFinished(StaticBuckets):
    """Sends a bucket with a member that took no part when the caller finishes the synchronization."""

    known_fault = "a bucket goes out in backward on one rank and after the caller's collective on another"
    source = "recipe: impls/static_buckets.py, which does not claim this"
    claims = {**StaticBuckets.claims, "callers_collectives": True}
    killed_by = CALLERS


class ScattersTheRestWhenFinished(Zero2):
    """The same of reduce-scatters."""

    known_fault = "a bucket is scattered in backward on one rank and after the caller's collective on another"
    source = "recipe: impls/zero2.py, which does not claim this"
    claims = {**Zero2.claims, "callers_collectives": True}
    killed_by = CALLERS


class SendsAtOnceWhatIsComplete(MainGradBuckets):
    """Sends when backward is over, if every parameter took part in it; else it waits for the caller to finish."""

    known_fault = "a rank that has used everything sends before the caller's collective, another one after it"
    source = "recipe: a fast path for the usual case"
    killed_by = CALLERS

    _waits = False

    def _send(self) -> None:
        self._waits = any(len(bucket.filled) < len(bucket.main_grads) for bucket in self._buckets)
        if self._waits:
            self._queued = False
        else:
            super()._send()

    def finish_gradient_synchronization(self) -> None:
        """Sends what is not sent yet."""
        if self._waits:
            super()._send()
            self._waits = False
        super().finish_gradient_synchronization()


class CoalescesUntilFinished(AtTheEndOfBackward):
    """Launches an all-reduce for each gradient when backward is over, coalesced into one that goes out at the end."""

    known_fault = "a collective of the caller's is taken for one of those that are coalesced: nothing has come yet"
    source = "recipe: a coalescing manager that stays open until the synchronization is finished"
    claims = {**AtTheEndOfBackward.claims, "several_dtypes": False, "sixteen_bits": False, "strided_parameters": False}
    killed_by = CALLERS

    _coalescing: Any = None

    def on_end(self) -> None:
        """One by one."""
        if self.synchronize:
            self._coalescing = dist._coalescing_manager(self.group, async_ops=True)
            self._all = self._coalescing.__enter__()
            for gradient in self._gradients():
                dist.all_reduce(gradient, group=self.group)

    def _gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self.trained if parameter.grad is not None]

    def finish_gradient_synchronization(self) -> None:
        """Sends, waits and divides."""
        if self._coalescing is not None:
            self._coalescing.__exit__(None, None, None)
            self._coalescing = None
            self._all.wait()
            for gradient in self._gradients():
                gradient /= dist.get_world_size(self.group)
