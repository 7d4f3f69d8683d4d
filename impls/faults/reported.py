"""Defects of published code that the other modules have no example of, each over what is nearest to the code that had
it.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from impls.sharded_optimizer import ShardedOptimizer
from impls.shards import Flat, Reduction
from impls.static_buckets import Bucket, StaticBuckets
from impls.trainer import MasterOptimizer, StaticBucketsTrainer
from impls.zero1 import Zero1
from impls.zero2 import Zero2
from impls.zero3 import Zero3

MEAN = "test_gradients_equal_the_mean_over_ranks"
COUNTS_ONCE = "test_no_sync_accumulates_and_then_counts_once"
ANY_CAP = "test_the_result_does_not_depend_on_the_bucket_cap"
BY_SOME = "test_a_parameter_that_some_ranks_used_gets_the_mean_on_all"
NORM = "test_the_reported_norm_is_that_of_the_whole_averaged_gradient"
SCALED = "test_clipping_scales_every_gradient_by_one_factor"
AGREED = "test_ranks_agree_on_overflows_and_on_the_loss_scale"
STEPS = "test_steps_of_shards_are_steps_of_the_whole"
VALUES = "test_every_step_leaves_the_parameters_and_state_of_one_process"
HERE = "test_saving_loading_and_going_on_equals_a_run_that_was_not_interrupted"
ELSEWHERE = "test_a_state_saved_on_n_ranks_goes_on_on_any_other_number"


class CountsHooksOnce(StaticBuckets):
    """Learns in the first window how often each hook fires, and reduces when as many have fired again."""

    known_fault = "what fires inside no_sync counts towards the number that the last backward alone never reaches"
    source = "B01 V https://github.com/pytorch/pytorch/pull/187732"
    killed_by = (COUNTS_ONCE,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self._expected: Counter[nn.Parameter] | None = None
        self._fired: Counter[nn.Parameter] = Counter()

    def prepare(self) -> None:
        """Counts anew, once it knows what to expect."""
        if self.synchronize and self._expected is not None:
            self._fired.clear()
        super().prepare()

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self._fired[parameter] += 1
        super()._on_gradient(parameter)

    def finish_gradient_synchronization(self) -> None:
        """Leaves this rank's own gradient where hooks are still awaited."""
        if self._expected is None:
            self._expected = Counter(self._fired)
        awaited = [each for each in self.trained if self._fired[each] < self._expected[each] and each.grad is not None]
        own = {parameter: parameter.grad.clone() for parameter in awaited if parameter.grad is not None}
        super().finish_gradient_synchronization()
        for parameter, gradient in own.items():
            parameter.grad = gradient


class _OfTheHooksResult(Bucket):
    def hand_out(self) -> None:
        """Gradients are views of what the hook has returned from now on, and not of the bucket."""
        super().hand_out()
        handed = [parameter for parameter, view in self.views.items() if parameter.grad is view]
        parts = self.elements.clone().split([parameter.numel() for parameter in self.views])
        self.views = {each: part.view_as(each) for each, part in zip(self.views, parts, strict=True)}
        for parameter in handed:
            parameter.grad = self.views[parameter]


class ViewsOfTheHooksResult(StaticBuckets):
    """Gradients become views of the tensor that a communication hook returns."""

    known_fault = "after the first reduction gradients go where the hook's result was, and the bucket is sent as it was"
    source = "E15 V https://github.com/pytorch/pytorch/pull/43307"
    killed_by = (MEAN,)
    bucket_class = _OfTheHooksResult


class DividesByTheCap(StaticBuckets):
    """Reckons beforehand how many buckets there will be."""

    known_fault = "a cap of zero, by which each parameter has a bucket of its own, is divided by"
    source = "F05 V https://github.com/deepspeedai/DeepSpeed/issues/8260"
    killed_by = (ANY_CAP,)

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self.about = math.ceil(sum(parameter.nbytes for parameter in module.parameters()) / (bucket_cap_mb * 2**20))
        super().__init__(module, bucket_cap_mb)


class TheSameAreUsedForEver(StaticBuckets):
    """Takes the parameters that had gradients in the first window for all that ever will."""

    known_fault = "a parameter that the first window did not use cannot be used in a later one"
    source = "C13 D https://github.com/deepspeedai/DeepSpeed/issues/1355"
    killed_by = (BY_SOME,)
    _used: set[nn.Parameter] | None = None

    def finish_gradient_synchronization(self) -> None:
        """Raises where there is another."""
        super().finish_gradient_synchronization()
        used = {parameter for parameter in self.trained if parameter.grad is not None}
        self._used = used if self._used is None else self._used
        if not used <= self._used:
            raise KeyError("a gradient of a parameter that is in no bucket")


class KeepsTheOverflow(StaticBucketsTrainer):
    """Leaves a step that is skipped before it gets to where gradients are zeroed."""

    known_fault = "after an overflow gradients are not zeroed, and the next window adds to what overflowed"
    source = "B18 V https://github.com/espnet/espnet/pull/3283"
    killed_by = (AGREED,)
    _skips = False

    def unscale_(self, scale: float) -> bool:
        """Remembers whether all are finite."""
        finite = super().unscale_(scale)
        self._skips = not finite
        return finite

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Not after a step that was skipped."""
        if not self._skips:
            super().zero_grad(set_to_none)
        self._skips = False


class ReturnsNoNorm(StaticBucketsTrainer):
    """Clips, and says nothing."""

    known_fault = "the function that clips returns nothing where it is to return the norm"
    source = "G21 V https://github.com/pytorch/pytorch/issues/87401"
    killed_by = (NORM,)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
        """Scales rightly."""
        super().clip_grad_norm_(max_norm, norm_type)


class _EpsilonFirst(MasterOptimizer):
    def step(self) -> None:
        """As with (sqrt(v) + eps) / sqrt(correction): eps counts as eps / sqrt(correction)."""
        self.steps = getattr(self, "steps", 0) + 1
        told = [group.get("eps") for group in self.inner.param_groups]
        for group in self.inner.param_groups:
            if "betas" in group:
                group["eps"] /= math.sqrt(1 - group["betas"][1] ** self.steps)
        super().step()
        for group, eps in zip(self.inner.param_groups, told, strict=True):
            if eps is not None:
                group["eps"] = eps


class EpsilonBeforeTheCorrection(StaticBucketsTrainer):
    """Adds Adam's eps to the root of the second moment before that is corrected for its bias."""

    known_fault = "eps is added before the bias correction, which makes it larger in the first steps"
    source = "H05 V https://github.com/karpathy/nanochat/pull/353"
    killed_by = (VALUES,)
    optimizer_class = _EpsilonFirst


class LargestOfNothing(Zero2):
    """Takes the infinity norm for the largest of this rank's largest elements."""

    known_fault = "a rank that owns no element has nothing to take the largest of, and raises"
    source = "G16 V https://github.com/NVIDIA/Megatron-LM/issues/5529"
    killed_by = (NORM,)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Right for other norms."""
        if norm_type == float("inf") and self.means:
            max(float(mean.abs().max()) for mean in self.means.values() if mean.numel())
        return super().clip_grad_norm_(max_norm, norm_type)


class LooksAtNothing(Zero2):
    """Looks for overflows in a list of answers, one for each piece that it has."""

    known_fault = "a rank that owns no element has no answer whether gradients overflowed, and raises"
    source = "H18 D https://github.com/facebookresearch/fairscale/pull/262"
    killed_by = (AGREED,)

    def unscale_(self, scale: float) -> bool:
        """Right where there is a piece."""
        torch.stack([mean.isfinite().all() for mean in self.means.values() if mean.numel()])
        return super().unscale_(scale)


class EmptyLosesItsShape(Zero1):
    """Hands parameters out again as they lie in the buffer, those without elements end to end as well."""

    known_fault = "a parameter without elements comes back from a step with another shape"
    source = "F17 V https://github.com/deepspeedai/DeepSpeed/issues/8279"
    killed_by = (STEPS,)

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        super().publish(stepped)
        for parameter in stepped:
            if not parameter.numel():
                parameter.data = parameter.data.view(-1)


class NeedsEvenRows(Zero1):
    """Cuts gradients along their first dimension."""

    known_fault = "the ranks must divide the first dimension of every parameter"
    source = "F19 V https://github.com/karpathy/nanochat/issues/320"
    killed_by = (STEPS,)

    def reduce(self, flat: Flat) -> Reduction:
        for member in flat.members:
            member.detach().view(dist.get_world_size(), -1)
        return super().reduce(flat)


class StepsNoEmptyPiece(Zero3):
    """Hands its pieces to a fused optimizer, which launches a kernel for each."""

    known_fault = "a step fails on a rank that owns no element of some parameter"
    source = "H14 V https://github.com/NVIDIA-NeMo/Automodel/pull/2997"
    killed_by = (STEPS,)

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        optimizer = super().make_optimizer(kind, groups, masters, **defaults)
        if not all(self.values(parameter).numel() for parameter in self.stepped_by):
            raise RuntimeError("invalid configuration argument: a grid of no blocks")
        return optimizer


class HalfInAWorldOfOne(Zero1):
    """Takes a rank's share out of the state that it loads, also where one rank has all."""

    known_fault = "in a world of one, state is cut when it is loaded as if there were two ranks"
    source = "I12 D https://github.com/pytorch/pytorch/pull/107185"
    killed_by = (HERE, ELSEWHERE)

    def load_full(self, parameters: Any, optimizer_state: Any = None) -> None:
        super().load_full(parameters, optimizer_state)
        if dist.get_world_size() == 1 and optimizer_state is not None:
            for state in self.optimizer.inner.state.values() if self.optimizer is not None else ():
                for name, held in state.items():
                    if name != "step":
                        held[-(-len(held) // 2) :] = 0


class SavesWhatItTrains(Zero1):
    """Leaves out of a checkpoint what was frozen when it was made."""

    known_fault = "a parameter that is frozen from the start is missing from what is saved"
    source = "I13 V https://github.com/deepspeedai/DeepSpeed/issues/6771"
    killed_by = (HERE, ELSEWHERE)

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        found = super().full_optimizer_state()
        return {name: found[name] for parameter, name in self._names.items() if parameter.requires_grad}
