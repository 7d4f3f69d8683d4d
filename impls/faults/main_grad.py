"""Main-grad buckets with the faults that published code of theirs has (P1, P3, P5, P16)."""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.main_grad_buckets import MainGradBucket, MainGradBuckets

MEAN = "test_gradients_equal_the_mean_over_ranks"
ZEROED = "test_zeroed_gradients_do_not_come_back"
_PICOTRON = "https://github.com/huggingface/picotron (data_parallel/)"


class TakesWhatComesIn(MainGradBuckets):
    """Adds gradients up in a hook that fires before they are accumulated."""

    known_fault = "a pre-accumulate hook sees the incoming gradient only: what .grad held before is lost"
    source = f"B06 S {_PICOTRON}"
    killed_by = (MEAN,)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        parameter.grad = None  # it has been taken
        incoming = self._incoming.pop(parameter)
        parameter.grad = incoming
        super()._on_gradient(parameter)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._incoming: dict[nn.Parameter, torch.Tensor] = {}
        for parameter in self.trained:
            parameter.register_hook(lambda gradient, parameter=parameter: self._incoming.update({parameter: gradient}))


class _Aliased(MainGradBucket):
    """Hands out its own memory."""

    def hand_out(self) -> None:
        self.buffer[: self.buffer.numel() - self.flags.numel()] /= dist.get_world_size()
        for (parameter, main_grad), ranks in zip(self.main_grads.items(), self.flags.tolist(), strict=True):
            if ranks:
                parameter.grad = main_grad.to(parameter.dtype)  # no copy where the dtypes agree
        self.filled.clear()

    def take(self, parameter: nn.Parameter) -> None:
        if parameter.grad is None and parameter not in self.filled:
            self.main_grads[parameter].zero_()
        super().take(parameter)


class GradientAliasesMainGrad(MainGradBuckets):
    """Lets ``.grad`` be the main gradient itself."""

    known_fault = ".grad aliases main_grad, so what backward adds to the one is added to the other again"
    source = "systems: main-grad buckets, param.grad aliasing main_grad"
    killed_by = (MEAN, ZEROED)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        for bucket in self._buckets:
            bucket.__class__ = _Aliased


class NoInitialBroadcast(MainGradBuckets):
    """Leaves it to the caller to start all ranks alike."""

    known_fault = "the initial broadcast is missing"
    source = f"recipe; systems: main-grad buckets ({_PICOTRON})"
    killed_by = ("test_every_rank_starts_with_the_parameters_of_rank_0",)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        kept = [parameter.detach().clone() for parameter in module.parameters()]
        super().__init__(module, bucket_cap_mb)
        for parameter, own in zip(module.parameters(), kept, strict=True):
            parameter.data.copy_(own)


class SentWhenReady(MainGradBuckets):
    """Sends a bucket as soon as all of its members are final."""

    known_fault = "buckets go out in the order in which they are ready, which differs between ranks"
    source = "D01 V https://github.com/NVIDIA/Megatron-LM/pull/2218"
    claims = {**MainGradBuckets.claims, "unused": None}
    killed_by = (MEAN, "test_the_result_does_not_depend_on_the_order_in_which_hooks_fire")

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 0.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._ready: dict[int, set[nn.Parameter]] = {}
        self._sent: dict[int, dist.Work] = {}

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        place = self._buckets.index(self._bucket_of[parameter])
        self._buckets[place].take(parameter)
        if self.synchronize:
            ready = self._ready.setdefault(place, set())
            ready.add(parameter)
            if len(ready) == len(self._buckets[place].main_grads):
                self._sent[place] = self._buckets[place].all_reduce()

    def finish_gradient_synchronization(self) -> None:
        """Waits for the buckets in their own order."""
        self._in_flight = [self._sent[place] for place in range(len(self._buckets))]
        self._ready.clear()
        super().finish_gradient_synchronization()
