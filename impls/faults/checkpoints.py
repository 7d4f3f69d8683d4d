"""Checkpoints with one known fault each: what is saved, and where it comes back to."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from lockstep.impls.sharded import HOLDS_MORE
from lockstep.impls.sharded_optimizer import ShardedOptimizer
from lockstep.impls.shards import Flat
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero3 import UnitCall, Zero3

Parameters = Mapping[str, torch.Tensor]
States = Mapping[str, Mapping[str, torch.Tensor]]

HERE = "test_saving_loading_and_going_on_equals_a_run_that_was_not_interrupted"
ELSEWHERE = "test_a_state_saved_on_n_ranks_goes_on_on_any_other_number"
WEIGHTS = "test_loading_weights_alone_makes_the_masters_follow"
SAVING = "test_saving_changes_nothing"
BACK = "test_going_back_to_what_was_saved_undoes_what_came_since"


class MastersStayBehind(Zero1):
    """Weights alone are loaded, and the masters are those of before."""

    known_fault = "float32 masters are not made anew when weights alone are loaded"
    source = "I06 V https://github.com/hpcaitech/ColossalAI/pull/4618"
    killed_by = (WEIGHTS,)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        masters = {} if self.optimizer is None else self.optimizer.masters
        before = {parameter: master.detach().clone() for parameter, master in masters.items()}
        super().load_full(parameters, optimizer_state)
        if optimizer_state is None:
            for parameter, master in masters.items():
                master.data.copy_(before[parameter])


class OnlyRankZeroRefreshes(MastersStayBehind):
    """The rank that read the file makes its masters anew, and no other does."""

    known_fault = "masters follow the weights that were loaded on rank 0 only"
    source = "recipe"
    killed_by = (WEIGHTS,)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        if torch.distributed.get_rank() == 0:
            Zero1.load_full(self, parameters, optimizer_state)
        else:
            super().load_full(parameters, optimizer_state)


class WeightsFromMasters(Zero1):
    """After loading, parameters are written from the masters once more, which nobody has told of the weights."""

    known_fault = "masters that were not refreshed are written over the weights that were loaded"
    source = "I06 V https://github.com/NovaSky-AI/SkyRL/pull/2149"
    killed_by = (WEIGHTS,)

    @torch.no_grad()
    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        if optimizer_state is None and self.optimizer is not None and self.optimizer.masters:
            return
        super().load_full(parameters, optimizer_state)


class SavesTheValuesOfLater(Zero1):
    """Saving goes on in the background: state is gathered once somebody waits for it, and nothing is copied before."""

    known_fault = "a save that ends after the next step has the optimizer's state of after that step"
    source = "I26 D https://github.com/pytorch/pytorch/issues/144657"
    killed_by = (BACK,)

    def full_optimizer_state(self) -> Any:
        """A handle; see `properties.sharded.Sharded`."""
        return SimpleNamespace(result=super().full_optimizer_state)


class TakesTheRestForPadding(Zero1):
    """Elements beyond the largest multiple of the number of ranks come back as zeros."""

    known_fault = "the end of a state is taken for padding, in a world whose size does not divide it"
    source = "I02 V https://github.com/deepspeedai/DeepSpeed/pull/5105"
    killed_by = (HERE, ELSEWHERE)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        cut = {
            name: {key: value if key == "step" else self._cut(name, value) for key, value in state.items()}
            for name, state in (optimizer_state or {}).items()
        }
        super().load_full(parameters, None if optimizer_state is None else cut)

    def _cut(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        size = torch.distributed.get_world_size(self.flat_of[self._by_name[name]].group)
        cut = whole.clone()
        cut.view(-1)[whole.numel() // size * size :] = 0
        return cut


class RestoresByPosition(Zero1):
    """The i-th state of the file is that of the i-th parameter."""

    known_fault = "optimizer state is restored by position, not by name"
    source = "I03 V https://github.com/pytorch/xla/pull/9224"
    killed_by = (ELSEWHERE,)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        states = None
        if optimizer_state is not None:
            states = dict(zip(self._names.values(), optimizer_state.values(), strict=True))
        super().load_full(parameters, states)


class ScramblesGroups(Zero1):
    """States go out in the order of the model and come in in the order of the groups."""

    known_fault = "the state of interleaved parameter groups comes back scrambled"
    source = "I07 D https://github.com/facebookresearch/fairscale/pull/483"
    killed_by = (HERE, ELSEWHERE)

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], *args: Any, **defaults: Any
    ) -> ShardedOptimizer:
        """See `properties.sharded.Sharded`."""
        self._grouped = [name for group in groups for name in group["names"]]
        return super().make_optimizer(kind, groups, *args, **defaults)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        states = None
        if optimizer_state is not None:
            states = dict(zip(self._grouped, optimizer_state.values(), strict=True))
        super().load_full(parameters, states)


class SavingTakesAStep(Zero1):
    """Takes a step with zero gradients if there is no state to save yet, as torch's own function does."""

    known_fault = "saving before the first step takes a step with zero gradients, which counts"
    source = "H07 V https://github.com/horovod/horovod/issues/2805"
    killed_by = (SAVING,)

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """See `properties.sharded.Sharded`."""
        if self.optimizer is not None and not self.optimizer.inner.state:
            means = self.means
            self.means = {parameter: torch.zeros_like(self.values(parameter)) for parameter in self.trained}
            rates = [group["lr"] for group in self.optimizer.param_groups]
            for group in self.optimizer.param_groups:
                group["lr"] = 0.0
            self.optimizer.step()
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            self.means = means
        return super().full_optimizer_state()


class SavingCounts(Zero1):
    """Reads the step count as it is written, one ahead, and leaves it so."""

    known_fault = "each save advances the step counters by one"
    source = "recipe"
    killed_by = (SAVING,)

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """See `properties.sharded.Sharded`."""
        told = super().full_optimizer_state()
        for state in self.optimizer.inner.state.values() if self.optimizer is not None else ():
            if "step" in state:
                state["step"] += 1
        return told


class SavingMovesTheStateAway(Zero1):
    """Offloads what it saves, and brings nothing back."""

    known_fault = "optimizer state that has been saved is gone"
    source = "recipe"
    killed_by = (SAVING,)

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """See `properties.sharded.Sharded`."""
        told = super().full_optimizer_state()
        if self.optimizer is not None:
            self.optimizer.inner.state.clear()
        return told


class _Copied(ShardedOptimizer):
    """Shows the groups that it began with, whatever the optimizer uses by now."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups' options."""
        return vars(self)["shown"]


class ForgetsHyperparameters(Zero1):
    """After loading, the optimizer has groups of its own, with the options of the start, and nobody can reach them."""

    known_fault = "hyper-parameters are not restored: the optimizer goes on with those of the start"
    source = "I05 V https://github.com/horovod/horovod/issues/526"
    killed_by = (HERE, ELSEWHERE)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        super().load_full(parameters, optimizer_state)
        if self.optimizer is not None and optimizer_state is not None:
            inner = self.optimizer.inner
            self.optimizer.__class__ = _Copied
            vars(self.optimizer)["shown"] = inner.param_groups
            inner.param_groups = [dict(group) for group in inner.param_groups]


class EmptyShardsDoNotCount(Zero1):
    """Does not count steps of a parameter of which this rank owns nothing, and each rank saves its own count."""

    known_fault = "the step counter does not advance where a rank's shard is empty"
    source = "H08 V https://github.com/NVIDIA/TransformerEngine/issues/1986"
    killed_by = (HERE, ELSEWHERE)

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """See `impls.sharded_optimizer`: called at the end of a step."""
        super().publish(stepped)
        assert self.optimizer is not None
        for parameter, values in stepped.items():
            step = self.optimizer.state(parameter).get("step")
            if step is not None and not values.numel() and parameter.numel():
                step -= 1


class StatesInOrderOfNames(Zero1):
    """States are gathered in the order of registration, and names put to them in that of the alphabet."""

    known_fault = "states are saved under sorted names, in the order in which parameters were registered"
    source = "I04 V https://github.com/huggingface/nanotron/pull/37"
    killed_by = (HERE, ELSEWHERE)

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """See `properties.sharded.Sharded`."""
        found = super().full_optimizer_state()
        return dict(zip(sorted(found), found.values(), strict=True))


class KeepsWhatTheFileHasNot(Zero1):
    """Takes up the states that it finds in the file, and leaves the others as they are."""

    known_fault = "a parameter that had no state when it was saved keeps what it has got since"
    source = "systems: ZeroRedundancyOptimizer of torch 2.13, docs/findings"
    killed_by = (BACK,)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        assert self.optimizer is not None
        held = self.optimizer.inner.state
        before = dict(held)
        super().load_full(parameters, optimizer_state)
        for piece, state in before.items():
            held.setdefault(piece, state)


class CountsStepsOn(Zero1):
    """Counts the steps of a run, in whichever direction it goes."""

    known_fault = "the step count is not set back when an earlier state is loaded"
    source = "recipe: a count that the optimizer keeps beside its state"
    killed_by = (BACK,)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        assert self.optimizer is not None
        held = self.optimizer.inner.state
        before = {piece: state["step"] for piece, state in held.items() if "step" in state}
        super().load_full(parameters, optimizer_state)
        for piece, count in before.items():
            if "step" in held.get(piece, {}):
                held[piece]["step"] = max(held[piece]["step"], count)


class RemembersWhatItSaved(Zero1):
    """Gathers optimizer state once for all who ask for it between two steps."""

    known_fault = "what is saved right after a load is what was saved before it"
    source = "recipe: a cache that a step drops, and a load does not"
    claims = {**Zero1.claims, **HOLDS_MORE}
    killed_by = (BACK,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._told: dict[str, dict[str, torch.Tensor]] | None = None

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """See `properties.sharded.Sharded`."""
        if self._told is None:
            told = super().full_optimizer_state()
            self._told = {name: {key: value.clone() for key, value in state.items()} for name, state in told.items()}
        return self._told

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """See `impls.sharded_optimizer`: called at the end of a step."""
        self._told = None
        super().publish(stepped)


class _StaysGathered(Zero3):
    """Leaves parameters gathered up to the next step, whatever is loaded until then."""

    claims = {**Zero3.claims, **HOLDS_MORE, "replicas": False}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._stay: list[Flat] = []

    def let_go(self) -> None:
        """Frees it."""
        self._release(self._stay)
        self._stay = []

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """See `impls.sharded_optimizer`: called at the end of a step."""
        self.let_go()
        super().publish(stepped)


class GathersAfterSteps(_StaysGathered):
    """Parameters stay gathered after a forward without autograd, up to the next step."""

    known_fault = "what was gathered for an evaluation is used after other parameters were loaded"
    source = "recipe, as in https://github.com/pytorch/pytorch/issues/117421"
    killed_by = (BACK,)

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        if torch.is_grad_enabled():
            super()._after_forward(call, outputs)
        else:
            self._stay += call.flats


class StaysGatheredInNoSync(_StaysGathered):
    """Keeps parameters that backward gathers inside `no_sync` until the next synchronization or step is over."""

    known_fault = "what a window has gathered that was dropped is used after other parameters were loaded"
    source = "recipe: parameters kept for the micro-batches that follow, whatever comes instead"
    killed_by = (BACK,)

    def _begin(self, call: UnitCall) -> None:
        super()._begin(call)
        if not self.synchronize:
            new = [flat for flat in call.flats if flat not in self._stay]
            self._gather(new)
            self._stay += new

    def finish_gradient_synchronization(self) -> None:
        """And then lets go of what has stayed."""
        super().finish_gradient_synchronization()
        if self.synchronize:
            self.let_go()


class HalfInAWorldOfOne(Zero1):
    """Takes a rank's share out of the state that it loads, also where one rank has all."""

    known_fault = "in a world of one, state is cut when it is loaded as if there were two ranks"
    source = "I12 D https://github.com/pytorch/pytorch/pull/107185"
    killed_by = (HERE, ELSEWHERE)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        super().load_full(parameters, optimizer_state)
        if torch.distributed.get_world_size() == 1 and optimizer_state is not None:
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
        """See `properties.sharded.Sharded`."""
        found = super().full_optimizer_state()
        return {name: found[name] for parameter, name in self._names.items() if parameter.requires_grad}
