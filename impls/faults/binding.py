"""Synchronizers bound to the wrong parameters: those of construction, or each name of a tensor by itself (P15)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.zero2 import Zero2

MEAN = "test_gradients_equal_the_mean_over_ranks"
FREEZING = "test_what_is_frozen_or_trained_again_is_followed"
REPLACED = "test_parameters_that_are_replaced_are_synchronized"
TIED = "test_a_tensor_of_two_names_is_one"
FROZEN = "test_frozen_parameters_stay_as_they_are"


class KeepsTheParametersOfConstruction(NaiveAccumulation):
    """Lists the parameters once, when it wraps the module."""

    known_fault = "parameters that the caller replaces are never synchronized"
    source = "L02 V https://github.com/pytorch/pytorch/issues/12603"
    killed_by = (REPLACED,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._parameters_then = list(module.parameters())

    @property
    def trained(self) -> list[nn.Parameter]:
        """Of those, the ones that are trained now."""
        return [parameter for parameter in self._parameters_then if parameter.requires_grad]


class KeepsTheBucketsOfConstruction(StaticBuckets):
    """Assigns buckets and hooks once."""

    known_fault = "what was not trained when the module was wrapped, or not there, has no hook and no bucket"
    source = "L01 V https://github.com/pytorch/pytorch/issues/104336"
    killed_by = (REPLACED, FREEZING)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._then = self.trained

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Looks at what was there then."""
        self._assigned = self.trained  # so that nothing seems to have changed
        return super().forward(*inputs, **named)


class CountsWhatIsTrained(StaticBuckets):
    """Takes it that the same parameters are trained as before where they are as many."""

    known_fault = "a parameter that is trained again, while another is frozen in its place, is in no bucket"
    source = "recipe: freeze one and train another again at once, as in tuning that goes layer by layer"
    claims = {**StaticBuckets.claims, "replaced_parameters": False}
    killed_by = (FREEZING,)

    def prepare(self) -> None:
        """As usual where their number has changed."""
        if len(self.trained) == len(self._assigned):
            self._assigned = self.trained
        super().prepare()

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if parameter in self._bucket_of:
            super()._on_gradient(parameter)


class HooksStayBehind(NaiveAccumulation):
    """Sums in the hooks that it registered while it wrapped the module, and divides afterwards what there is now."""

    known_fault = "parameters that the caller replaces have no hook: they are divided without having been summed"
    source = "L01 V https://github.com/pytorch/pytorch/issues/104336"
    claims = {**NaiveAccumulation.claims, "hook_order": False}
    killed_by = (REPLACED,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._sum)

    def _sum(self, parameter: nn.Parameter) -> None:
        if self.synchronize and parameter.grad is not None:
            dist.all_reduce(parameter.grad)

    def finish_gradient_synchronization(self) -> None:
        """The sums become means."""
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad /= dist.get_world_size()


class WaitsForEveryName(StaticBuckets):
    """Counts the members of a bucket by name, and a tensor of two names fires one hook."""

    known_fault = "a bucket with a tied parameter waits for a hook that never fires, and is not sent"
    source = "F12 V https://github.com/NVIDIA/Megatron-LM/pull/6164"
    claims = {**StaticBuckets.claims, "unused": None}
    killed_by = (TIED,)

    def finish_gradient_synchronization(self) -> None:
        """The gradients of the first bucket with such a parameter, and of all later ones, stay local."""
        names = [id(parameter) for _, parameter in self.module.named_parameters(remove_duplicate=False)]
        twice = {name for name in names if names.count(name) > 1}
        local = {
            parameter: None if parameter.grad is None else parameter.grad.clone()
            for bucket in self._buckets
            if any(id(member) in twice for member in bucket.views)
            for parameter in bucket.views
        }
        super().finish_gradient_synchronization()
        for parameter, gradient in local.items():
            parameter.grad = gradient


class HooksEveryName(NaiveAccumulation):
    """Goes through the parameters name by name."""

    known_fault = "a tied parameter is listed under each of its names, and summed over ranks that often"
    source = "F11 V https://github.com/pytorch/pytorch/pull/51929"
    killed_by = (TIED,)

    def finish_gradient_synchronization(self) -> None:
        """Sums by name; divides by tensor."""
        for _, parameter in self.module.named_parameters(remove_duplicate=False):
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad /= dist.get_world_size()


class SlotForEveryName(NaiveAccumulation):
    """One flat buffer with a slot for each name, added back into the gradients."""

    known_fault = "a tied parameter has a slot for each of its names, and gets its mean that often"
    source = "F12 V https://github.com/NVIDIA/Megatron-LM/pull/6164"
    claims = {**NaiveAccumulation.claims, "several_dtypes": False}
    killed_by = (TIED,)

    def finish_gradient_synchronization(self) -> None:
        """Adds up slots."""
        named = self.module.named_parameters(remove_duplicate=False)
        gradients = [parameter.grad for _, parameter in named if parameter.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient in gradients:
            gradient.zero_()
        for gradient, mean in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient += mean.view_as(gradient)


class DropsWhatIsTrainedAgain(StaticBuckets):
    """Takes frozen parameters off its list, and puts none on it."""

    known_fault = "a parameter that was frozen and is trained again is never synchronized"
    source = "recipe: requires_grad flipped"
    killed_by = (FREEZING,)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that have always been trained."""
        now = super().trained
        self._always = (
            now if self._always is None else [each for each in now if any(each is one for one in self._always)]
        )
        return self._always

    _always: list[nn.Parameter] | None = None

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if parameter in self._bucket_of:
            super()._on_gradient(parameter)


class ZeroesWhatIsTrained(StaticBuckets):
    """Zeroes gradients by the list of parameters that it synchronizes."""

    known_fault = "a parameter frozen after a step keeps its gradient, which is stepped again, or added to later"
    source = "recipe: requires_grad flipped before gradients are zeroed"
    killed_by = (FREEZING,)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of what is trained now."""
        for parameter in self.trained:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


class DropsTheMeansOfWhatIsTrained(Zero2):
    """The same where gradients are sharded, and a mean is no attribute of its parameter."""

    known_fault = "the slice of a mean of a parameter frozen after a step outlives zero_grad"
    source = "recipe: requires_grad flipped before gradients are zeroed"
    killed_by = (FREEZING,)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Puts back the means of what is frozen."""
        kept = {parameter: mean for parameter, mean in self.means.items() if not parameter.requires_grad}
        super().zero_grad(set_to_none)
        self.means.update(kept)


class TrainsWhatIsFrozen(StaticBuckets):
    """Registers every parameter anew before each forward, and a new parameter is trained."""

    known_fault = "frozen parameters lose requires_grad=False"
    source = "L07 V https://github.com/pytorch/torchtitan/issues/3885"
    killed_by = (FROZEN, FREEZING)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Everything is trained."""
        for parameter in self.module.parameters():
            parameter.requires_grad_(True)
        return super().forward(*inputs, **named)


class WaitsForWhatIsFrozen(StaticBuckets):
    """Has places in its buckets for all parameters; a bucket goes out when all of its members are ready."""

    known_fault = "a bucket with a frozen parameter is never ready, and neither it nor any after it is sent"
    source = "C03 V https://github.com/pytorch/pytorch/pull/14675"
    claims = {**StaticBuckets.claims, "unused": None}
    killed_by = (FROZEN, FREEZING)

    def finish_gradient_synchronization(self) -> None:
        """The gradients from the first such bucket on stay local."""
        everything = list(self.module.parameters())[::-1]
        first = next((n for n, parameter in enumerate(everything) if not parameter.requires_grad), len(everything))
        local = {p: p.grad.clone() for p in everything[first:] if p.grad is not None}
        super().finish_gradient_synchronization()
        for parameter, gradient in local.items():
            parameter.grad = gradient


class ZerosForFrozen(StaticBuckets):
    """Gives every parameter a gradient, so that optimizers find one."""

    known_fault = "frozen parameters get gradients of zeros: weight decay moves them"
    source = "C01 V https://github.com/pytorch/pytorch/issues/28294"
    killed_by = (FROZEN, FREEZING)

    def finish_gradient_synchronization(self) -> None:
        """Zeros for those without."""
        super().finish_gradient_synchronization()
        for parameter in self.module.parameters():
            if not parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)


class FollowsWhereItSynchronizes(StaticBuckets):
    """Looks what is trained before forwards that synchronize; those inside `no_sync` send nothing."""

    known_fault = "inside no_sync it knows nothing of a parameter that is trained again, whose hook then fails"
    source = "recipe: buckets that are made anew where they are needed"
    killed_by = (FREEZING,)

    def prepare(self) -> None:
        if self.synchronize:
            super().prepare()
        else:
            for work in self._in_flight:
                work.wait()
            self._in_flight.clear()
