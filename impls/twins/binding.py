"""Twins of the static buckets that are bound to the model in unusual ways."""

from typing import Any

from torch import nn

from impls.static_buckets import StaticBuckets


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
