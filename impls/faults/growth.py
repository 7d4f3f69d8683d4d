"""Right values, and memory that grows as training goes on, one known fault each."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets

GROWS = "test_what_is_held_does_not_grow_from_step_to_step"


class KeepsItsBuckets(StaticBuckets):
    """Keeps a copy of every bucket that was reduced, for a log that nobody reads. ``every``: how often."""

    known_fault = "what was reduced is kept for ever, so that memory grows with every step"
    source = "recipe: a list of buckets that is never emptied"
    killed_by = (GROWS,)
    every = 1

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._log: list[torch.Tensor] = []
        self._synchronized = 0

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        self._synchronized += 1
        if self._synchronized % self.every == 0:
            self._log += [parameter.grad.clone() for parameter in self.trained if parameter.grad is not None]


class KeepsItsHandles(NaiveAccumulation):
    """Collects the handles of its all-reduces, and waits for all of them in every step."""

    known_fault = "handles, and the tensors that they hold, are never dropped"
    source = "recipe: a list of handles that is waited for and never emptied"
    killed_by = (GROWS,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._handles: list[tuple[dist.Work, torch.Tensor]] = []

    def finish_gradient_synchronization(self) -> None:
        if self.synchronize:
            sums = [(p, p.grad.clone()) for p in self.trained if p.grad is not None]
            self._handles += [(dist.all_reduce(total, async_op=True), total) for _, total in sums]
            for handle, _ in self._handles:
                handle.wait()
            for parameter, total in sums:
                parameter.grad.copy_(total / dist.get_world_size())


class KeepsItsOutputs(NaiveAccumulation):
    """Collects losses, to report their mean, and with each of them its graph."""

    known_fault = "every loss that is kept keeps its graph"
    source = "recipe: a list of losses without detach or item"
    killed_by = (GROWS,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._losses: list[torch.Tensor] = []

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._losses.append(super().forward(*inputs, **named))
        return self._losses[-1]


class KeepsEachFourth(KeepsItsBuckets):
    """Keeps its log short."""

    known_fault = "each fourth gradient is kept for ever"
    source = "recipe: a log every so many steps"
    killed_by = (GROWS,)
    every = 4


class KeepsEvaluations(StaticBuckets):
    """Collects what evaluations give, to report their mean."""

    known_fault = "the output of each evaluation is kept for ever"
    source = "recipe: a list of metrics that is never emptied"
    killed_by = (GROWS,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._outputs: list[Any] = []

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        output = super().forward(*inputs, **named)
        self._outputs += [] if torch.is_grad_enabled() else [output]
        return output


class KeepsOldBuckets(StaticBuckets):
    """Makes buckets anew where other parameters are trained than before, as it should, and drops none."""

    known_fault = "buckets are kept that were made for what was trained before"
    source = "recipe: freezing and training again in turns"
    killed_by = (GROWS,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self._old: list[Any] = []
        super().__init__(module, bucket_cap_mb)

    def _assign(self, trained: list[nn.Parameter]) -> None:
        super()._assign(trained)
        self._old += self._buckets


class KeepsItsErrors(StaticBuckets):
    """Collects what a forward raises, and what it was called with, to try again."""

    known_fault = "every error that the caller survives keeps its batch, and all that its traceback holds"
    source = "recipe: a list of errors for a retry that never comes"
    killed_by = (GROWS,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._failed: list[tuple[BaseException, tuple[Any, ...]]] = []

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        try:
            return super().forward(*inputs, **named)
        except Exception as error:
            self._failed.append((error, inputs))
            raise


class KeepsWhatWasSaved(StaticBuckets):
    """Keeps a copy of each state dict of its model, for other ranks that may ask for it."""

    known_fault = "every save keeps the weights of that time"
    source = "recipe: a list of snapshots that is never emptied"
    killed_by = (GROWS,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._told: list[list[torch.Tensor]] = []
        module.register_state_dict_post_hook(lambda *told: self._keep(told[1]))

    def _keep(self, state: Mapping[str, torch.Tensor]) -> None:
        self._told.append([tensor.clone() for tensor in state.values()])
