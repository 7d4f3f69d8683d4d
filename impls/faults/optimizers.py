"""Sharded optimizers with one known fault each: closures, groups that come later, learning rates, and their classes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.owned_parameters import OwnedParameters

CLOSURES = ("test_a_step_runs_its_closure_once_and_returns_the_loss",)
GROUPS = ("test_a_group_of_parameters_that_is_added_later_is_stepped_like_the_others",)
MISSING = ("test_a_mean_that_some_ranks_lack_is_stepped_like_any_other",)
RATES = ("test_a_scheduler_sets_the_learning_rates_of_the_next_step",)
CLASSES = ("test_steps_of_any_claimed_class_have_the_bits_of_the_plain_optimizer",)


class DropsTheLoss(OwnedParameters):
    """Steps, and forgets what the closure gave."""

    known_fault = "step(closure) returns nothing"
    source = "recipe"
    killed_by = CLOSURES

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        super().step(closure)


class OwnerlessRunsNoClosure(OwnedParameters):
    """A rank that owns nothing has nothing to step, and leaves the closure out."""

    known_fault = "a rank that owns no parameter does not run the closure, in which others wait for it"
    source = "recipe"
    killed_by = CLOSURES

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None and dist.get_rank() not in self.owners.values():
            self.publish(self.owners)
            return None
        return super().step(closure)


class ReadsGradientsBeforeTheClosure(OwnedParameters):
    """Gathers the parameters that have gradients, and only then runs the closure."""

    known_fault = "gradients are looked for before the closure has made them"
    source = "recipe"
    killed_by = CLOSURES

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        there = [each for each in self.owners if each.grad is not None]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter in self.owners:
            if parameter not in there:
                parameter.grad = None
        super().step()
        return loss


class RunsTheClosureTwice(OwnedParameters):
    """Runs it once for the loss, and once more in the step."""

    known_fault = "the closure runs once for the loss and once in the plain optimizer, so that gradients count twice"
    source = "recipe"
    killed_by = CLOSURES

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            return super().step()
        with torch.enable_grad():
            loss = closure()
        super().step(closure)
        return loss


class LateGroupsStayOutside(OwnedParameters):
    """The plain optimizer knows the groups of the start alone."""

    known_fault = "a group that is added later never comes to the optimizer that steps"
    source = "recipe"
    killed_by = GROUPS

    def __init__(self, params: Any, optimizer_cls: Callable[..., torch.optim.Optimizer], **defaults: Any) -> None:
        super().__init__(params, optimizer_cls, **defaults)
        self.made = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "made", False):
            torch.optim.Optimizer.add_param_group(self, param_group)
        else:
            super().add_param_group(param_group)

    def hand_on(self) -> None:
        assert self.local is not None
        for group, own in zip(self.param_groups, self.local.param_groups, strict=False):
            own.update({name: value for name, value in group.items() if name != "params"})


class LateParametersAreNotSent(OwnedParameters):
    """Broadcasts the parameters that were listed when the optimizer was made."""

    known_fault = "only parameters of the start are broadcast, so that added ones differ between ranks"
    source = "recipe"
    killed_by = GROUPS

    def __init__(self, params: Any, optimizer_cls: Callable[..., torch.optim.Optimizer], **defaults: Any) -> None:
        super().__init__(params, optimizer_cls, **defaults)
        self.sent = [*self.owners]

    def publish(self, parameters: Iterable[nn.Parameter]) -> None:
        super().publish(self.sent)


class LateGroupsHaveTheFirstOptions(OwnedParameters):
    """Gives a new group the options of the first one."""

    known_fault = "a group that is added later is stepped with the options of the first group"
    source = "recipe"
    killed_by = GROUPS

    def __init__(self, params: Any, optimizer_cls: Callable[..., torch.optim.Optimizer], **defaults: Any) -> None:
        super().__init__(params, optimizer_cls, **defaults)
        self.made = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "made", False):
            first = {name: value for name, value in self.param_groups[0].items() if name != "params"}
            param_group = {**param_group, **first}
        super().add_param_group(param_group)


class KeepsOptionsOfTheStart(OwnedParameters):
    """The plain optimizer has options of its own, which nobody changes."""

    known_fault = "learning rates are copied when the optimizer is made"
    source = "H02 V https://github.com/facebookresearch/fairscale/issues/58"
    killed_by = RATES

    def hand_on(self) -> None: ...


class HandsOnTheFirstRate(OwnedParameters):
    """Takes the learning rate of the first group for all."""

    known_fault = "every group is stepped with the learning rate of the first"
    source = "recipe"
    killed_by = RATES

    def hand_on(self) -> None:
        super().hand_on()
        assert self.local is not None
        for own in self.local.param_groups:
            own["lr"] = self.param_groups[0]["lr"]


class HandsOnAfterTheStep(OwnedParameters):
    """A step has the learning rate of the step before."""

    known_fault = "learning rates come one step late"
    source = "recipe"
    killed_by = RATES
    due: Any = None

    def hand_on(self) -> None:
        assert self.local is not None
        before = [own["lr"] for own in self.local.param_groups] if self.due is None else self.due
        self.due = [group["lr"] for group in self.param_groups]
        super().hand_on()
        for own, rate in zip(self.local.param_groups, before, strict=True):
            own["lr"] = rate


class _Cut(OwnedParameters):
    """Every rank steps a part of every parameter, as if it were a parameter of its own."""

    def __init__(self, params: Any, optimizer_cls: Callable[..., torch.optim.Optimizer], **defaults: Any) -> None:
        self.parts: dict[nn.Parameter, nn.Parameter] = {}
        super().__init__(params, optimizer_cls, **defaults)

    def cut(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The parts, by rank."""
        return tensor.reshape(-1).tensor_split(dist.get_world_size())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        torch.optim.Optimizer.add_param_group(self, param_group)
        group, rank = self.param_groups[-1], dist.get_rank()
        for parameter in group["params"]:
            self.parts[parameter] = nn.Parameter(self.cut(parameter.detach())[rank].clone())
        own = {**group, "params": [self.parts[each] for each in group["params"]]}
        if self.local is None:
            self.local = self.optimizer_cls([own], **self.options)
        else:
            self.local.add_param_group(own)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss, rank = None, dist.get_rank()
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter, part in self.parts.items():
            part.data = self.cut(parameter.detach())[rank].clone()
            part.grad = None if parameter.grad is None else self.cut(parameter.grad)[rank].clone()
        assert self.local is not None
        self.hand_on()
        self.local.step()
        for parameter, values in self.gathered():
            parameter.data.copy_(values)
        return loss

    def gathered(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Each parameter that has been stepped, and its new values."""
        for parameter, part in self.parts.items():
            if parameter.grad is not None:
                parts = [each.clone() for each in self.cut(parameter.detach())]
                parts[dist.get_rank()] = part.detach().clone()
                for rank, each in enumerate(parts):
                    dist.broadcast(each, src=rank)
                yield parameter, torch.cat(parts).view(parameter.shape)


class FlatAdafactor(_Cut):
    """Flat shards, of an optimizer that keeps sums over rows and columns."""

    claims = {"optimizers": (torch.optim.Adafactor,)}
    known_fault = "an optimizer that looks at rows and columns is given flat shards, which have none"
    source = "recipe"
    killed_by = CLASSES


class RowsOfMuon(_Cut):
    """Some rows of each matrix, of an optimizer that makes whole matrices orthogonal."""

    claims = {"optimizers": (torch.optim.Muon,)}
    known_fault = "an optimizer of whole matrices is given some of their rows"
    source = "recipe"
    killed_by = CLASSES

    def cut(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensor.tensor_split(dist.get_world_size()) if tensor.dim() == 2 else super().cut(tensor)


class TakesOptionsOfAdamAlone(OwnedParameters):
    """Hands on what Adam takes."""

    claims = {"optimizers": (torch.optim.RMSprop,)}
    known_fault = "options that only other optimizers have do not come to the one that steps"
    source = "recipe"
    killed_by = CLASSES

    def hand_on(self) -> None:
        assert self.local is not None
        for group, own in zip(self.param_groups, self.local.param_groups, strict=True):
            own.update({name: group[name] for name in ("lr", "betas", "eps", "weight_decay") if name in group})
            own.update({name: value for name, value in self.local.defaults.items() if name in ("momentum", "maximize")})


class OwnersLoseWhatTheyLack(OwnedParameters):
    """Right where every rank has every mean; claims that it need not."""

    claims = {"missing_gradients": True}
    known_fault = "the rank that owns a parameter has no mean of it, and so nobody steps it"
    source = "recipe"
    killed_by = MISSING


class WithoutGradientsStaysAway(OwnedParameters):
    """A rank that has no gradient of what it owns has nothing to step, and returns."""

    claims = {"missing_gradients": True}
    known_fault = "a rank that has no gradient of its own parameters skips the broadcasts, in which others wait for it"
    source = "H32 V https://github.com/facebookresearch/optimizers/pull/149"
    killed_by = MISSING

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        own = [each for each, rank in self.owners.items() if rank == dist.get_rank()]
        if not own or any(each.grad is not None for each in own):
            super().step()
        return loss


class SendsWhatItHasAGradientOf(OwnedParameters):
    """Leaves parameters without a gradient out of the broadcasts."""

    claims = {"missing_gradients": True}
    known_fault = "each rank broadcasts the parameters of which it has a gradient itself"
    source = "recipe"
    killed_by = MISSING

    def publish(self, parameters: Iterable[nn.Parameter]) -> None:
        super().publish([each for each in parameters if each.grad is not None])
