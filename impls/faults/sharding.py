"""Sharded training with one known fault each, a few lines over ZeRO's stages."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.sharded import HOLDS_MORE, ShardedDataParallel
from lockstep.impls.sharded_optimizer import ShardedOptimizer
from lockstep.impls.shards import Flat, Reduction
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero2 import Zero2
from lockstep.impls.zero3 import UnitCall, Zero3

STEPS = "test_steps_of_shards_are_steps_of_the_whole"
SAME = "test_every_stage_gives_the_bits_of_no_sharding_at_all"
HELD = "test_what_is_sharded_is_held_once"
BYTE = "test_each_rank_holds_its_slices_to_the_byte"
IN_USE = "test_only_what_is_in_use_is_whole"
MEAN = "test_gradients_equal_the_mean_over_ranks"
UNSEEN = "test_what_nobody_looks_at_is_trained_all_the_same"
STATE = "test_every_step_leaves_the_parameters_and_state_of_one_process"


# Who owns what


class LastElementsOfNobody(Zero1):
    """Shares are rounded down: of seven elements on two ranks the last is never stepped."""

    known_fault = "the last elements belong to nobody where the ranks do not divide them"
    source = "recipe"
    killed_by = (STEPS, SAME)

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        before = {flat: torch.cat([member.detach().reshape(-1) for member in flat.members]) for flat in self.flats}
        super().publish(stepped)
        for flat, values in before.items():
            shared = flat.total // dist.get_world_size() * dist.get_world_size()
            offset = 0
            for member, size in zip(flat.members, flat.sizes, strict=True):
                now = member.detach().reshape(-1).clone()
                now[max(shared - offset, 0) :] = values[offset + max(shared - offset, 0) : offset + size]
                member.data.copy_(now.view(member.shape))
                offset += size


class RefusesToOwnNothing(Zero1):
    """Leaves empty pieces out, and a rank that has no others has no optimizer."""

    known_fault = "a rank whose share is empty cannot make its optimizer"
    source = "F18 D https://github.com/deepspeedai/DeepSpeed/issues/129"
    killed_by = (STEPS,)

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        optimizer = super().make_optimizer(kind, groups, masters, **defaults)
        if not any(self.values(parameter).numel() for parameter in self.flat_of):
            raise ValueError("optimizer got an empty parameter list")
        return optimizer


class FirstDtypeForAll(Zero1):
    """One bucket for parameters of every dtype, in that of the first."""

    known_fault = "the dtype of the first parameter is taken for all"
    source = "F08 D https://github.com/facebookresearch/fairscale/pull/583"
    killed_by = (STEPS, SAME, MEAN)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        ShardedDataParallel.__init__(self, module, [list(module.parameters())])


# What is held


class ShardsNothing(NaiveAccumulation):
    """Claims ZeRO-1; every rank has the whole optimizer."""

    claims = {**NaiveAccumulation.claims, "stage": 1, "masters": True, "exact_memory": True, "sharded_by": "buckets"}
    known_fault = "the optimizer is stepped on unsharded state"
    source = "recipe"
    killed_by = (HELD, BYTE)


class GradientsStay(Zero2):
    """Keeps whole gradients beside their slices."""

    known_fault = "whole gradients outlive their reduction"
    source = "recipe"
    killed_by = (HELD, BYTE)

    def reduce(self, flat: Flat) -> Reduction:
        self._kept = {**getattr(self, "_kept", {}), **{member: member.grad for member in flat.members}}
        return super().reduce(flat)


class FreesNothing(Zero3):
    """Gathers parameters and never frees them."""

    known_fault = "gathered parameters are never freed"
    source = "recipe"
    killed_by = (HELD, BYTE, IN_USE)

    def _free(self, flat: Flat) -> None:
        pass


# How it is reduced


class ForgetsEarlierBackwards(Zero2):
    """Each reduction overwrites what earlier ones have left, as if it were the only one before the step."""

    known_fault = "each synchronizing backward resets the accumulated gradient"
    source = "B09 V https://github.com/allenai/open-instruct/pull/1498"
    killed_by: tuple[str, ...] = (STEPS, SAME, MEAN)

    def settle(self, reduction: Reduction) -> None:
        for member in reduction.flat.members:
            self.means.pop(member, None)
        super().settle(reduction)


class DoublesOnOneRank(Zero3):
    """A shortcut for a group of one, where shard and buffer are the same memory: adding one to the other doubles."""

    known_fault = "in a world of one, accumulated gradients double"
    source = "A01 V https://github.com/NVIDIA/Megatron-LM/issues/6660"
    killed_by = (STEPS,)

    def settle(self, reduction: Reduction) -> None:
        if dist.get_world_size() == 1:
            for member in reduction.flat.members:
                if member in self.means:
                    self.means[member] *= 2
        super().settle(reduction)


class OverwritesOnOneRank(ForgetsEarlierBackwards):
    """A shortcut for a group of one that copies where it should add."""

    known_fault = "in a world of one, only the last backward counts"
    source = "A02 V https://github.com/ServiceNow/Fast-LLM/issues/550"
    killed_by = (STEPS,)

    def settle(self, reduction: Reduction) -> None:
        settle = ForgetsEarlierBackwards.settle if dist.get_world_size() == 1 else Zero2.settle
        settle(self, reduction)


class DividesByTheShardGroup(Zero3):
    """The mean over replicas is left out."""

    known_fault = "gradients are divided by the size of the shard group instead of the world's"
    source = "A13 V https://github.com/deepspeedai/DeepSpeed/issues/6545"
    killed_by = (STEPS,)

    def settle(self, reduction: Reduction) -> None:
        before = {member: mean.clone() for member, mean in self.means.items()}
        super().settle(reduction)
        replicas = dist.get_world_size() // dist.get_world_size(reduction.flat.group)
        for member in reduction.flat.members:
            if member in self.means:
                old = before.get(member, torch.zeros_like(self.means[member]))
                self.means[member] = old + (self.means[member] - old) * replicas


class NoDivisorForShardsOfOne(DividesByTheShardGroup):
    """The same where each rank is a shard group of its own."""

    known_fault = "with one rank to a shard group, the divisor is ignored"
    source = "A03 V https://github.com/pytorch/pytorch/pull/167178"

    def settle(self, reduction: Reduction) -> None:
        alone = dist.get_world_size(reduction.flat.group) == 1
        settle = DividesByTheShardGroup.settle if alone else Zero3.settle
        settle(self, reduction)


class GatherScratch(Zero1):
    """The gradient buffer is also where parameters are gathered, and is not zeroed after that."""

    known_fault = "parameters gathered into the gradient buffer count as gradients in the next step"
    source = "E12 V https://github.com/NVIDIA/Megatron-LM/pull/4609"
    killed_by = (STEPS,)

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        super().publish(stepped)
        self._scratch = {parameter: parameter.detach().clone() for parameter in self.flat_of}

    def reduce(self, flat: Flat) -> Reduction:
        scratch: dict[nn.Parameter, torch.Tensor] = getattr(self, "_scratch", {})
        return flat.reduce_scatter(
            {each: scratch.get(each) if each.grad is None else each.grad for each in flat.members}
        )


# How it is stepped


class OptionsOfItsOwn(Zero2):
    """The shards' optimizer has its own copy of the options."""

    known_fault = "options changed between steps do not reach the optimizer of the shards"
    source = "H04 V https://github.com/facebookresearch/fairscale/pull/58"
    killed_by = (STEPS, "test_hyper_parameters_changed_between_steps_take_effect")

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        told = super().make_optimizer(kind, groups, masters, **defaults)
        told.inner.step = _with_options(told.inner, [dict(group) for group in told.param_groups])
        return told


def _with_options(inner: torch.optim.Optimizer, own: list[dict[str, Any]]) -> Any:
    def step() -> None:
        shown = [dict(group) for group in inner.param_groups]
        for group, options in zip(inner.param_groups, own, strict=True):
            group.update(options)
        type(inner).step(inner)
        for group, options in zip(inner.param_groups, shown, strict=True):
            group.update(options)

    return step


class StepsToMakeState(Zero3):
    """A step with gradients of zero, so that there is state to load into."""

    known_fault = "a step of zeros makes the state, and counts"
    source = "H06 V https://github.com/NVIDIA/Megatron-LM/pull/5976"
    killed_by = (STEPS, STATE)

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        optimizer = super().make_optimizer(kind, groups, masters, **defaults)
        self.means = {parameter: torch.zeros_like(self.values(parameter)) for parameter in self.flat_of}
        optimizer.step()
        self.means = {}
        return optimizer


class EmptySharesDoNotCount(Zero1):
    """A rank whose piece of a parameter is empty does not count its step."""

    known_fault = "step counts stay behind where a rank's share is empty"
    source = "H08 V https://github.com/NVIDIA/TransformerEngine/issues/1986"
    killed_by = (STEPS, STATE)

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        found = super().full_optimizer_state()
        for parameter, name in self._names.items():
            if "step" in found[name] and not self.values(parameter).numel():
                found[name]["step"].zero_()
        return found


class NoMasters(Zero3):
    """Steps 16-bit shards in 16 bits though masters were asked for."""

    known_fault = "the optimizer keeps no float32 masters"
    source = "H13 V https://github.com/TensorAuto/OpenTau/pull/182"
    killed_by = (STEPS, "test_masters_are_float32")

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        return super().make_optimizer(kind, groups, **defaults)


class StaleMasters(Zero3):
    """Loaded weights do not reach the masters, which the next step puts back."""

    known_fault = "masters are not made anew from loaded weights"
    source = "I06 V https://github.com/hpcaitech/ColossalAI/pull/4618"
    killed_by = ("test_loading_weights_alone_makes_the_masters_follow",)

    def load_full(self, parameters: Any, optimizer_state: Any = None) -> None:
        assert self.optimizer is not None
        masters = {parameter: master.detach().clone() for parameter, master in self.optimizer.masters.items()}
        super().load_full(parameters, optimizer_state)
        if optimizer_state is None:
            for parameter, stale in masters.items():
                self.optimizer.masters[parameter].data.copy_(stale)


class CountsCallsOnce(Zero3):
    """Reduces a unit after as many backwards through it as there were in the first micro-batch."""

    known_fault = "of a unit that is called oftener later on, gradients are reduced before all are there"
    source = "recipe: a trace of the first step that is followed ever after, as of DeepSpeed's ZeRO-3"
    claims = {
        **Zero3.claims,
        **HOLDS_MORE,
        **dict.fromkeys(("survives_errors", "drops_losses", "several_forwards", "freezing", "replicas"), False),
        "backwards": None,
    }
    killed_by = (STEPS,)

    def __init__(self, module: nn.Module) -> None:
        self._counted: dict[Flat, int] | None = None
        self._ended: Counter[Flat] = Counter()
        super().__init__(module)

    def _end(self, call: UnitCall) -> None:
        self._open.remove(call)
        self._release(call.flats)
        self._ended.update(call.flats)
        awaited = {flat for other in (*self._open, *self._to_come) for flat in other.flats}
        for flat in call.flats if self.synchronize else ():
            now = flat not in awaited if self._counted is None else self._ended[flat] == self._counted.get(flat, 1)
            if now and any(member.requires_grad for member in flat.members):
                self._reduce(flat)

    def _after_backward(self) -> None:
        super()._after_backward()
        if self._counted is None and self.synchronize:
            self._counted = dict(self._ended)
        self._ended.clear()


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

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        if not all(piece.numel() for piece in stepped.values()):
            raise RuntimeError("invalid configuration argument: a grid of no blocks")
        super().publish(stepped)


class OldValuesOutOfTurn(Zero3):
    """After a step it gathers in the order of registration: what is called before its turn is as it was last."""

    known_fault = "units that are called against the order of registration compute with values from before the step"
    source = "H31 D https://github.com/NVIDIA/Megatron-LM/issues/950"
    claims = {**Zero3.claims, **HOLDS_MORE}
    killed_by = (UNSEEN,)

    def __init__(self, module: nn.Module, replicas: int = 1, kernels: bool | None = None) -> None:
        super().__init__(module, replicas, kernels)
        self._due: list[Flat] = []  # what is still to be gathered since the last step, in the order of registration
        self._last: dict[Flat, list[torch.Tensor]] = {}  # values that were gathered last
        self._late: dict[Flat, list[torch.Tensor]] = {}  # values of what came before its turn in this micro-batch

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """All is to be gathered anew."""
        super().publish(stepped)
        self._due = list(self.flats)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Ends what was still to be gathered, so that to look is to heal."""
        self._due = []
        return super().full_parameters()

    def _before_forward(self) -> None:
        super()._before_forward()
        self._late = {}

    def _gather(self, flats: list[Flat]) -> None:
        for flat in flats:
            if flat in self._due[1:] and flat in self._last:
                self._late[flat] = self._last[flat]
            self._due = [other for other in self._due if other is not flat]
            super()._gather([flat])
            for member, values in zip(flat.members, self._late.get(flat, ()), strict=False):
                member.data.copy_(values)
            self._last[flat] = [member.detach().clone() for member in flat.members]
