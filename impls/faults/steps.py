"""Optimizer steps with one known fault each: counters, state, hyper-parameters, and what is skipped."""

import math
from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.trainer import MasterOptimizer, StaticBucketsTrainer

VALUES = ("test_every_step_leaves_the_parameters_and_state_of_one_process",)
GAPS = ("test_a_parameter_without_a_gradient_is_left_alone_by_the_step",)
ALIKE = ("test_optimizer_state_is_the_same_on_every_rank",)
OPTIONS = ("test_hyper_parameters_changed_between_steps_take_effect",)


class _Allocating(MasterOptimizer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        trained = [held for held in self.held.values() if held.requires_grad]
        kept = [held.detach().clone() for held in trained]
        for held in trained:
            held.grad = torch.zeros_like(held)
        self.inner.step()
        with torch.no_grad():
            for held, values in zip(trained, kept, strict=True):
                held.copy_(values)
                held.grad = None


class CountsTheAllocation(StaticBucketsTrainer):
    """Makes the optimizer's state by a step with zero gradients, which is then undone, but for the counter."""

    known_fault = "state is allocated by a step with zero gradients, which counts as a step"
    source = "H06 V https://github.com/NVIDIA/Megatron-LM/pull/5976"
    killed_by = VALUES
    optimizer_class = _Allocating


class _NeverCounting(MasterOptimizer):
    def step(self) -> None:
        for state in self.inner.state.values():
            if "step" in state:
                state["step"].zero_()
        super().step()


class NeverCounts(StaticBucketsTrainer):
    """Every step is the first."""

    known_fault = "the step counter is never advanced, so bias correction stays that of the first step"
    source = "H10 V https://github.com/allenai/OLMo-core/pull/317"
    killed_by = VALUES
    optimizer_class = _NeverCounting


class StateGoesWithGradients(StaticBucketsTrainer):
    """Clears the optimizer's state with the gradients."""

    known_fault = "moments and counters are lost when gradients are dropped"
    source = "recipe"
    killed_by = VALUES

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops too much."""
        super().zero_grad(set_to_none)
        self.optimizer.inner.state.clear()


class _Zeros(MasterOptimizer):
    def step(self) -> None:
        missing = [each for each in self.named.values() if each.grad is None and each.requires_grad]
        for parameter in missing:
            parameter.grad = torch.zeros_like(parameter)
        super().step()
        for parameter in missing:
            parameter.grad = None


class ZerosForMissing(StaticBucketsTrainer):
    """Gives a parameter without a gradient one of zeros for the step."""

    known_fault = "a parameter without a gradient is stepped with zeros: momentum and weight decay move it"
    source = "C01 V https://github.com/pytorch/pytorch/issues/28294"
    killed_by = GAPS
    optimizer_class = _Zeros


class _ZerosForNone(_Zeros):
    def step(self) -> None:
        some = any(each.grad is not None for each in self.named.values())
        (MasterOptimizer if some else _Zeros).step(self)


class ZerosForNone(StaticBucketsTrainer):
    """Steps as if all gradients were zero where there is none at all."""

    known_fault = "after a batch that was left out momentum and weight decay move every parameter"
    source = "recipe: gradients in one buffer for good, which are zeroed and never dropped"
    killed_by = VALUES
    optimizer_class = _ZerosForNone


class _LooksAtTheNorm(MasterOptimizer):
    def step(self) -> None:
        torch.stack([each.grad.norm() for each in self.named.values() if each.grad is not None])
        super().step()


class NeedsSomeGradient(StaticBucketsTrainer):
    """Looks at the norms of all gradients before it steps."""

    known_fault = "a step after a batch that was left out raises: there is no gradient to look at"
    source = "recipe: torch.stack of nothing"
    killed_by = VALUES
    optimizer_class = _LooksAtTheNorm


class _OneCounter(MasterOptimizer):
    steps = 0

    def step(self) -> None:
        for state in self.inner.state.values():
            if "step" in state:
                state["step"].fill_(self.steps)
        self.steps += 1
        super().step()
        for state in self.inner.state.values():
            if "step" in state:
                state["step"].fill_(self.steps)


class OneCounterForAll(StaticBucketsTrainer):
    """Counts steps of the optimizer instead of steps of each parameter."""

    known_fault = "one step counter for all parameters, also for those that took no part in a step"
    source = "recipe"
    killed_by = GAPS
    optimizer_class = _OneCounter


class _AllOrNothing(MasterOptimizer):
    def step(self) -> None:
        if all(each.grad is not None for each in self.named.values() if each.requires_grad):
            super().step()


class AllOrNothing(StaticBucketsTrainer):
    """Leaves the whole step out where one parameter has no gradient."""

    known_fault = "return where it should be continue: one parameter without a gradient, and none is stepped"
    source = "recipe"
    killed_by = GAPS
    optimizer_class = _AllOrNothing


class _OnlyOnRankZero(MasterOptimizer):
    def step(self) -> None:
        before = {held: {**state} for held, state in self.inner.state.items()}
        kept = {held: [value.clone() for value in _moments(state)] for held, state in before.items()}
        super().step()
        if dist.get_rank():
            for held, values in kept.items():
                for moment, value in zip(_moments(self.inner.state[held]), values, strict=True):
                    moment.copy_(value)


def _moments(state: dict[str, Any]) -> list[torch.Tensor]:
    return [value for name, value in state.items() if name != "step" and isinstance(value, torch.Tensor)]


class MomentsOfRankZero(StaticBucketsTrainer):
    """After the first step only rank 0 keeps its moments up to date, since it is the one that saves them."""

    known_fault = "moments are updated on rank 0 only"
    source = "recipe"
    killed_by = ALIKE
    optimizer_class = _OnlyOnRankZero


class _LocalMoments(MasterOptimizer):
    def step(self) -> None:
        super().step()
        with torch.no_grad():
            for state in self.inner.state.values():
                for moment in _moments(state):
                    moment.add_(dist.get_rank())


class StateOfItsOwn(StaticBucketsTrainer):
    """Adds noise to its state that differs from rank to rank."""

    known_fault = "optimizer state depends on the rank"
    source = "recipe"
    killed_by = ALIKE
    optimizer_class = _LocalMoments


class StepsWithItsOwn(StaticBucketsTrainer):
    """Adds this rank's own gradient to the moments: the step is taken before the reduction is finished."""

    known_fault = "the optimizer is handed the gradients of its own rank"
    source = "recipe"
    killed_by = ALIKE

    def finish_gradient_synchronization(self) -> None:
        """Keeps what this rank had."""
        own = {p: p.grad.clone() for p in self.trained if p.grad is not None}
        super().finish_gradient_synchronization()
        for parameter, gradient in own.items():
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)


class _Copied(MasterOptimizer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.copies = [{**group} for group in self.inner.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.copies


class OptionsCopied(StaticBucketsTrainer):
    """Shows a copy of the groups, so that a scheduler changes the copy."""

    known_fault = "the inner optimizer has its own copy of the hyper-parameters"
    source = "H04 V https://github.com/facebookresearch/fairscale/pull/58"
    killed_by = OPTIONS
    optimizer_class = _Copied


class _OnlyTheRate(_Copied):
    def step(self) -> None:
        for group, shown in zip(self.inner.param_groups, self.copies, strict=True):
            group["lr"] = shown["lr"]
        super().step()


class OnlyTheRate(StaticBucketsTrainer):
    """Hands on the learning rate, and forgets that there are other options."""

    known_fault = "of the hyper-parameters only the learning rate is handed on"
    source = "H04 V https://github.com/facebookresearch/fairscale/issues/66"
    killed_by = OPTIONS
    optimizer_class = _OnlyTheRate


class _OneGroup(_Copied):
    def step(self) -> None:
        for group in self.inner.param_groups:
            group.update({name: value for name, value in self.copies[0].items() if name != "params"})
        super().step()


class OneGroupForAll(StaticBucketsTrainer):
    """Steps every group with the options of the first."""

    known_fault = "the options of the first group are used for all"
    source = "recipe"
    killed_by = OPTIONS
    optimizer_class = _OneGroup


class _HandsOnTwo(MasterOptimizer):
    handed_on: tuple[str, ...] = ("lr", "weight_decay")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._outer = [{key: group[key] for key in group if key != "params"} for group in self.inner.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._outer

    def step(self) -> None:
        for group, told in zip(self.inner.param_groups, self._outer, strict=True):
            group |= {option: told[option] for option in self.handed_on if option in told}
        super().step()


class HandsOnRateAndDecay(StaticBucketsTrainer):
    """Passes only learning rate and weight decay on to the inner optimizer."""

    known_fault = "of changed hyper-parameters only learning rate and weight decay are handed on"
    source = "H04 V https://github.com/facebookresearch/fairscale/issues/66"
    killed_by = OPTIONS
    optimizer_class = _HandsOnTwo


class _HandsOnFive(_HandsOnTwo):
    handed_on = ("lr", "weight_decay", "momentum", "betas", "eps")


class HandsOnWhatItKnows(StaticBucketsTrainer):
    """The same, with the moments; dampening and Nesterov's momentum stay those of the start."""

    known_fault = "of changed hyper-parameters dampening and nesterov are not handed on"
    source = "H04 V https://github.com/facebookresearch/fairscale/issues/58"
    killed_by = OPTIONS
    optimizer_class = _HandsOnFive


class _HandsOnSix(_HandsOnTwo):
    handed_on = ("lr", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps")


class NeverTurnsRound(StaticBucketsTrainer):
    """The same, with all that there was before torch's optimizers had ``maximize``."""

    known_fault = "where maximize is turned on later, steps go on downwards"
    source = "recipe"
    killed_by = OPTIONS
    optimizer_class = _HandsOnSix


class _RateOrDefault(MasterOptimizer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._first = [group["lr"] for group in self.inner.param_groups]

    def step(self) -> None:
        for group, first in zip(self.inner.param_groups, self._first, strict=True):
            group["lr"] = group["lr"] or first
        super().step()


class ZeroIsNoRate(StaticBucketsTrainer):
    """A rate of zero counts as none given, as where a schedule that warms up begins."""

    known_fault = "a learning rate of zero is taken for the first one"
    source = "recipe"
    killed_by = OPTIONS
    optimizer_class = _RateOrDefault


class _OfTheFirstGroup(MasterOptimizer):
    def step(self) -> None:
        first, *others = self.inner.param_groups
        for group in others:
            group |= {option: first[option] for option in ("momentum", "betas", "eps") if option in group}
        super().step()


class MomentsOfTheFirstGroup(StaticBucketsTrainer):
    """Learning rate and weight decay are each group's own, the rest is taken from the first."""

    known_fault = "momentum, betas and eps of the first group are used for all"
    source = "recipe"
    killed_by = VALUES
    optimizer_class = _OfTheFirstGroup


class _DecayAndNoDecay(_Copied):
    def step(self) -> None:
        for group, shown in zip(self.inner.param_groups[:2], self.copies, strict=False):
            group.update({option: value for option, value in shown.items() if option != "params"})
        super().step()


class HandsOnToTwoGroups(StaticBucketsTrainer):
    """Knows one group with weight decay and one without."""

    known_fault = "what a schedule changes reaches two groups of parameters, and no third"
    source = "recipe: groups for decay and no decay"
    killed_by = OPTIONS
    optimizer_class = _DecayAndNoDecay


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
    killed_by = VALUES
    optimizer_class = _EpsilonFirst
