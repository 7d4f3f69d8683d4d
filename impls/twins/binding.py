"""Twins of the static buckets that are bound to the model in unusual ways."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.wrapper import add_over_ranks


class PreparesInAHook(StaticBuckets):
    """Does before each forward of the wrapped module, whoever calls it, what others do in their own."""

    odd = "buckets are made ready by a hook of the wrapped module"
    claims = {**StaticBuckets.claims, "direct_forwards": True}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        module.register_forward_pre_hook(lambda *_: self.prepare())

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.module(*inputs, **named)


class GoesAlongWithItsModel(StaticBuckets):
    """Prepares in a hook that is bound to it, so that a copy of the model has a copy of the wrapper."""

    odd = "a copy of the model takes the wrapper and its buckets along"

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        module.register_forward_pre_hook(self._before_forward)

    def _before_forward(self, *_: Any) -> None:
        """Once more."""
        self.prepare()


class HooksEachForward(StaticBuckets):
    """Prepares and observes each forward by hooks of its own, which it takes away again."""

    odd = "hooks of its own come and go with each forward, those of others stay"

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        before = self.module.register_forward_pre_hook(lambda *_: self.prepare(), prepend=True)
        behind = self.module.register_forward_hook(lambda *_: None, always_call=True)
        try:
            return self.module(*inputs, **named)
        finally:
            before.remove()
            behind.remove()


class MakesBucketsAnew(StaticBuckets):
    """Looks before each forward whether what it has cut out of a buffer is still there."""

    odd = "where a gradient has left its buffer, all buckets are made anew"
    claims = {**StaticBuckets.claims, "moved_parameters": True}

    def prepare(self) -> None:
        """Gradients go into the new buckets as their hooks fire, or when those are sent."""
        for bucket in self._buckets:
            begin, end = bucket.buffer.data_ptr(), bucket.buffer.data_ptr() + bucket.buffer.nbytes
            if not all(begin <= view.data_ptr() < end for view in bucket.views.values() if view.numel()):
                self._assign(self.trained)
                break
        super().prepare()


class TellsItselfInItsOwnWords(StaticBuckets):
    """Tells its parameters the last first, and saves in a format of its own."""

    odd = "its state dict has a version and no tensor, and its parameters come in the reverse order"

    def named_parameters(self, *args: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The named parameters, which `parameters()` follows."""
        return reversed(list(super().named_parameters(*args, **named)))

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """The model's, inside."""
        return {"version": 2, "model": self.module.state_dict(*args, **named)}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Of that version."""
        if state_dict["version"] != 2:
            raise ValueError(f"a state of version {state_dict['version']}")
        return self.module.load_state_dict(state_dict["model"], strict, assign)


class FollowsNewNames(NaiveAccumulation):
    """Asks the model for its parameters by name, each time anew."""

    claims = {**NaiveAccumulation.claims, "replaced_parameters": "under new names"}
    odd = "gradients are averaged by the names that parameters have now, from the last name to the first"

    def finish_gradient_synchronization(self) -> None:
        """The mean over ranks, unless inside `no_sync`."""
        named = {name: each for name, each in self.module.named_parameters() if each.requires_grad}
        for name in sorted(named, reverse=True) if self.synchronize else ():
            self.average(name, named[name])

    def average(self, name: str, parameter: nn.Parameter) -> None:
        """The mean over ranks of one gradient, if there is one."""
        if parameter.grad is not None:
            add_over_ranks(parameter.grad, self.group)
            parameter.grad /= dist.get_world_size(self.group)
