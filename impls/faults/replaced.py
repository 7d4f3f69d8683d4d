"""Synchronizers that go on with the gradients that they know, whatever the caller has put in their place (P3)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import Bucket, StaticBuckets
from lockstep.impls.wrapper import add_over_ranks

REPLACED = ("test_a_gradient_that_the_caller_replaces_counts_as_its_copy_does",)
# Each binds the tensors of its parameters once; the other laws say what comes of that.
_CLAIMS = {
    **NaiveAccumulation.claims,
    **dict.fromkeys(("freezing", "replaced_parameters", "moved_parameters", "survives_errors"), False),
    **dict.fromkeys(("drops_windows", "drops_losses", "other_models"), False),
    "replaced_gradients": True,
}


class AveragesOneBuffer(NaiveAccumulation):
    """All gradients of a dtype are views of one buffer, which is averaged whole."""

    known_fault = "a gradient that is no view of the buffer any more is not what is averaged"
    source = "recipe: flat gradients, linked anew where there are none"
    claims = _CLAIMS
    killed_by = REPLACED

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        dtypes = dict.fromkeys(parameter.dtype for parameter in self.trained)
        self._buffers = [Bucket([each for each in self.trained if each.dtype is dtype]) for dtype in dtypes]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, with gradients to add to."""
        for buffer in self._buffers if torch.is_grad_enabled() else ():
            for parameter, view in buffer.views.items():
                if parameter.grad is None:
                    parameter.grad = view.zero_()
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Averages what is in the buffers."""
        for buffer in self._buffers if self.synchronize else ():
            add_over_ranks(buffer.elements)
            buffer.elements /= dist.get_world_size()


class AveragesWhatItsHooksSaw(NaiveAccumulation):
    """Notes each gradient when it first comes, and averages those."""

    known_fault = "a gradient that was replaced since the first micro-batch of a window is averaged no more"
    source = "recipe: a list of gradients that is filled by hooks and emptied by each synchronization"
    claims = _CLAIMS
    killed_by = REPLACED

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._noted: dict[nn.Parameter, torch.Tensor] = {}
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._note)

    def _note(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        self._noted.setdefault(parameter, parameter.grad)

    def finish_gradient_synchronization(self) -> None:
        """One after the other, in the order of registration."""
        for parameter in self.trained if self.synchronize else ():
            if (gradient := self._noted.pop(parameter, None)) is not None:
                add_over_ranks(gradient)
                gradient /= dist.get_world_size()


class _LinksOnce(Bucket):
    """Takes a gradient that was a view of its buffer for one that still is."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.linked: set[nn.Parameter] = set()

    def adopt(self, parameter: nn.Parameter) -> None:
        """Moves in what is new."""
        if parameter not in self.linked:
            super().adopt(parameter)
            self.linked.add(parameter)


class LinksUntilZeroed(StaticBuckets):
    """Links a gradient to its bucket once, and again where it has become None."""

    known_fault = "the bucket sends what the gradient was before it was replaced"
    source = "recipe: a link that is made anew for one reason only"
    killed_by = REPLACED
    bucket_class: type[Bucket] = _LinksOnce

    def prepare(self) -> None:
        """Drop the links of gradients that are gone."""
        super().prepare()
        for bucket in self._buckets:
            assert isinstance(bucket, _LinksOnce)
            bucket.linked -= {parameter for parameter in bucket.views if parameter.grad is None}
