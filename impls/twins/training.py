"""Clipping and steps that are right in unusual ways."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveDataParallel
from lockstep.impls.static_buckets import Bucket
from lockstep.impls.trainer import MasterOptimizer, StaticBucketsTrainer
from lockstep.impls.wrapper import DataParallel, Group, add_over_ranks, torch_groups


class NormInShares(StaticBucketsTrainer):
    """Every rank takes the norm of some of the parameters, and all add up their powers."""

    odd = "each rank takes the norm of its share of the parameters, and the ranks combine them"

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """In float32 or wider, rounded to the widest dtype in the end."""
        everybodys = list(gradients)
        if not everybodys:
            return super().total_norm(everybodys, norm_type)
        widest = reduce(torch.promote_types, (gradient.dtype for gradient in everybodys))
        wide = torch.promote_types(widest, torch.float32)
        mine = everybodys[dist.get_rank() :: dist.get_world_size()]
        norms = torch.stack(
            [torch.zeros((), dtype=wide), *(torch.linalg.vector_norm(g, norm_type).to(wide) for g in mine)]
        )
        if norm_type == float("inf"):
            largest = norms.max()
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            return largest.to(widest)
        power = (norms**norm_type).sum()
        dist.all_reduce(power)
        return (power.sqrt() if norm_type == 2 else power ** (1 / norm_type)).to(widest)


class _OneForEach(MasterOptimizer):
    """A torch optimizer for each tensor, which share their state."""

    def __init__(self, kind: type[torch.optim.Optimizer], *arguments: Any) -> None:
        super().__init__(kind, *arguments)
        self.each = {}
        for held in self.held.values():
            self.each[held] = kind([{"params": [held]}], lr=1.0)
            self.each[held].state = self.inner.state

    def step(self) -> None:
        """The last tensor first."""
        for name, master in self.masters.items():
            gradient = self.named[name].grad
            master.grad = None if gradient is None else gradient.to(master.dtype)
        for group in self.inner.param_groups[::-1]:
            options = {option: value for option, value in group.items() if option != "params"}
            for held in group["params"][::-1]:
                self.each[held].param_groups[0].update(options)
                self.each[held].step()
        with torch.no_grad():
            for name, master in self.masters.items():
                if master.grad is not None:
                    self.named[name].copy_(master)


class OneOptimizerForEach(StaticBucketsTrainer):
    """Steps the parameters one by one, the last first, each by an optimizer of its own."""

    odd = "a torch optimizer for each parameter, and the last parameter is stepped first"

    optimizer_class = _OneForEach


class _InItsPlace(nn.Module):
    """Takes the place of a submodule, and calls it."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child
        self.called = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The submodule's, and a note that it was called."""
        self.called |= torch.is_grad_enabled()
        return self.child(*inputs, **named)


class WrapsEachSubmodule(NaiveDataParallel):
    """Puts a module of its own in the place of each submodule, as policies that wrap by themselves do, and knows no
    gradient of one that was never called.
    """

    odd = "each submodule is replaced by a wrapper, which sees its forward"
    claims = {**NaiveDataParallel.claims, "outside_reads": False}

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for name, child in module.named_children():
            if any(True for _ in child.parameters(recurse=False)):
                setattr(module, name, _InItsPlace(child))

    @property
    def trained(self) -> list[nn.Parameter]:
        """Of the root, and of the submodules that have been called."""
        children = self.module.children()
        idle = [child for child in children if isinstance(child, _InItsPlace) and not child.called]
        theirs = {parameter for child in idle for parameter in child.parameters()}
        return [parameter for parameter in super().trained if parameter not in theirs]


class _Kept(Bucket):
    """``means``: what was reduced last, in float32 or wider, as it came out."""

    def __init__(self, members: list[nn.Parameter], group: Group = None) -> None:
        super().__init__(members, group)
        self.means: dict[nn.Parameter, torch.Tensor] = {}

    def all_reduce(self) -> dist.Work:
        self.fill()
        self._wide = self.buffer.to(torch.promote_types(self.buffer.dtype, torch.float32))
        return dist.all_reduce(self._wide, group=self.group, async_op=True)

    def average(self, kernels: bool | None) -> None:
        self._wide[: len(self.elements)] *= 1 / dist.get_world_size(self.group)
        self.buffer.copy_(self._wide)
        sizes = [view.numel() for view in self.views.values()]
        parts = self._wide[: len(self.elements)].split(sizes)
        self.means = {p: part.view_as(view) for (p, view), part in zip(self.views.items(), parts, strict=True)}
        self.hand_out()


class _StepsMeans(MasterOptimizer):
    """Steps masters by the means as they came out, which ``wrapper`` has."""

    wrapper: "StepsMeansInFloat32"

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        return self.wrapper.means.get(parameter, parameter.grad)


class StepsMeansInFloat32(StaticBucketsTrainer):
    """Reduces in float32, times the reciprocal of the number of ranks, and unscales, clips and steps what came out;
    ``grad`` is that, rounded to the parameter's dtype. So do Megatron-LM and DeepSpeed.
    """

    odd = "means of 16-bit gradients are kept, clipped and stepped in float32, and only shown in 16 bits"
    claims = {**StaticBucketsTrainer.claims, "reduce_dtype": "float32"}
    bucket_class = _Kept
    optimizer_class = _StepsMeans

    @property
    def means(self) -> dict[nn.Parameter, torch.Tensor]:
        """Of the last synchronization, where nothing was added since or dropped."""
        buckets = [bucket for bucket in self._buckets if isinstance(bucket, _Kept)]
        return {p: mean for bucket in buckets for p, mean in bucket.means.items() if p.grad is not None}

    def prepare(self) -> None:
        """Add to ``grad`` from now on."""
        super().prepare()
        self._forget()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._forget()

    def _forget(self) -> None:
        for bucket in self._buckets:
            if isinstance(bucket, _Kept):
                bucket.means = {}

    def gradients(self) -> list[torch.Tensor]:
        means = self.means
        there = [parameter for parameter in self.module.parameters() if parameter.grad is not None]
        return [means.get(parameter, parameter.grad) for parameter in there]

    def unscale_(self, scale: float) -> bool:
        finite = super().unscale_(scale)
        self._show()
        return finite

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        gradients = self.gradients()
        norm = self.total_norm(gradients, norm_type)
        for gradient in gradients:
            gradient *= torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        self._show()
        return norm

    def make_optimizer(self, *given: Any, **named: Any) -> MasterOptimizer:
        made = super().make_optimizer(*given, **named)
        assert isinstance(made, _StepsMeans)
        made.wrapper = self
        return made

    def _show(self) -> None:
        for parameter, mean in self.means.items():
            parameter.grad.copy_(mean)


class _OfWhatTrains(MasterOptimizer):
    """Has masters of what is trained; of what is frozen from the start once it has a gradient."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.late = [name for name in self.masters if not self.named[name].requires_grad]
        for name in self.late:
            self._hold(name, self.named[name], self.masters.pop(name))

    def _hold(self, name: str, tensor: nn.Parameter, instead: nn.Parameter) -> None:
        self.held[name] = tensor
        for group in self.inner.param_groups:
            group["params"] = [tensor if each is instead else each for each in group["params"]]

    def step(self) -> None:
        for name in list(self.late):
            if (parameter := self.named[name]).grad is not None:
                self.late.remove(name)
                self.masters[name] = self.master_of(parameter)
                self._hold(name, self.masters[name], parameter)
        super().step()


class NoMastersOfWhatIsFrozen(StaticBucketsTrainer):
    """A float32 copy costs four bytes an element, and of what is frozen nobody reads it."""

    odd = "16-bit parameters that are frozen have no masters until they are trained"
    optimizer_class = _OfWhatTrains


class AlreadyStepped:
    """The optimizer that a caller is given where backward steps. ``each``: the optimizer of each parameter."""

    def __init__(self, each: Mapping[nn.Parameter, torch.optim.Optimizer]) -> None:
        self.param_groups = [group for optimizer in each.values() for group in optimizer.param_groups]

    def step(self) -> None:
        """Does nothing: backward has."""


class StepsInBackward(DataParallel):
    """Each parameter has an optimizer of its own, and a hook that averages, steps and frees its gradient."""

    claims = {"accumulation": True, "hook_order": False, "steps_in_backward": True, "tied_parameters": True}
    odd = "the backward that synchronizes steps each parameter as soon as its gradient is there, and frees that"

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.named = dict(module.named_parameters())
        self.optimizers: dict[nn.Parameter, torch.optim.Optimizer] = {}

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> AlreadyStepped:
        """One optimizer for each trained parameter."""
        for group in torch_groups(groups, self.named):
            for parameter in (each for each in group["params"] if each.requires_grad):
                self.optimizers[parameter] = kind([{**group, "params": [parameter]}], **defaults)
                parameter.register_post_accumulate_grad_hook(self.on_gradient)
        return AlreadyStepped(self.optimizers)

    def on_gradient(self, parameter: nn.Parameter) -> None:
        """The gradient of a parameter is whole, in this micro-batch."""
        if self.synchronize:
            self.average(parameter)
            self.step(parameter)

    def average(self, parameter: nn.Parameter) -> None:
        """The mean over ranks."""
        assert parameter.grad is not None
        add_over_ranks(parameter.grad)
        parameter.grad /= dist.get_world_size()

    def step(self, parameter: nn.Parameter) -> None:
        """The step of one parameter, whose gradient is of no more use then."""
        self.optimizers[parameter].step()
        parameter.grad = None

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The state of each parameter's own optimizer."""
        there = ((name, each) for name, each in self.named.items() if each in self.optimizers)
        states = {name: self.optimizers[each].state[each] for name, each in there}
        return {name: {key: held for key, held in state.items() if held is not None} for name, state in states.items()}

    @torch.no_grad()
    def load_full(self, parameters: Mapping[str, torch.Tensor], optimizer_state: Any) -> None:
        """Takes up parameters, and the state of each."""
        for name, values in parameters.items():
            self.named[name].copy_(values)
        for name, state in (optimizer_state or {}).items():
            self.optimizers[self.named[name]].state[self.named[name]] = dict(state)
