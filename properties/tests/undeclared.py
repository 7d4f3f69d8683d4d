"""Correct code that declares nothing, as people write it: each is odd in a way that some law once took for a fault."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import broadcast_from_rank_zero


class Averaging(nn.Module):
    """The mean of each gradient when the caller says that backward is over."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        broadcast_from_rank_zero(module)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def finish_gradient_synchronization(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                self.average(parameter.grad)

    def average(self, gradient: torch.Tensor) -> None:
        """Multiplies by the reciprocal, which rounds otherwise than a division."""
        dist.all_reduce(gradient)
        gradient *= 1 / dist.get_world_size()


class TakesOneInput(Averaging):
    """Its forward takes one argument, as where a model is called with a batch."""

    def forward(self, batch: Any) -> Any:
        return self.module(batch)


class Bytes(Averaging):
    """Gathers bytes, which are none of any floating-point format, and adds up."""

    def average(self, gradient: torch.Tensor) -> None:
        mine = gradient.contiguous().reshape(-1).view(torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        total = torch.stack([part.view(gradient.dtype) for part in parts]).sum(0)
        gradient.copy_(total.view_as(gradient) / len(parts))


class Ring(Averaging):
    """An all-reduce of messages between neighbors: the roots of a rank's messages are other ranks'."""

    def average(self, gradient: torch.Tensor) -> None:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        parts = list(gradient.reshape(-1).clone().tensor_split(ranks))
        for step in range(2 * (ranks - 1)):
            adds = step < ranks - 1
            first = rank - step if adds else rank + 1 - (step - ranks + 1)
            ours, theirs = first % ranks, (first - 1) % ranks
            received = torch.empty_like(parts[theirs])
            sent = dist.isend(parts[ours].clone(), (rank + 1) % ranks)
            dist.recv(received, (rank - 1) % ranks)
            sent.wait()
            parts[theirs].copy_(parts[theirs] + received if adds else received)
        gradient.copy_((torch.cat(parts) / ranks).view_as(gradient))


class Exchanges(Averaging):
    """Each rank adds up a part of its own, of uneven parts, and all gather them: counts differ between ranks."""

    def average(self, gradient: torch.Tensor) -> None:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        parts = list(gradient.reshape(-1).clone().tensor_split(ranks))
        sizes, own = [len(part) for part in parts], len(parts[rank])
        theirs = gradient.new_empty(own * ranks)
        dist.all_to_all_single(theirs, torch.cat(parts), [own] * ranks, sizes)
        dist.all_gather(parts, theirs.view(ranks, own).sum(0) / ranks)
        gradient.copy_(torch.cat(parts).view_as(gradient))


class OwnNames(Averaging):
    """Has methods of usual names that take less than usual."""

    def zero_grad(self) -> None:
        self.module.zero_grad()

    def clip_grad_norm_(self, max_norm: float) -> float:
        return float(nn.utils.clip_grad_norm_(self.module.parameters(), max_norm))


def made_by_a_function(module: nn.Module) -> nn.Module:
    """What it makes has no `no_sync`."""
    return Averaging(module)


class Learns(Averaging):
    """Reduces, from the first synchronization on, in the order in which gradients came on rank 0 before it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.synchronize, self.came, self.order = True, list[int](), list[int]()
        self.named = list(module.parameters())
        for index, parameter in enumerate(self.named):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _, index=index: self.came.append(index))

    def no_sync(self) -> Any:
        """Only marks the micro-batch."""
        return _Without(self)

    def finish_gradient_synchronization(self) -> None:
        if not self.order:
            firsts = list(dict.fromkeys(self.came))
            order = torch.tensor(firsts, device=self.named[0].device)
            dist.broadcast(order, src=0)
            self.order = order.tolist()
        for index in self.order:
            self.average(self.named[index].grad)


class _Without:
    def __init__(self, wrapper: Learns) -> None:
        self.wrapper = wrapper

    def __enter__(self) -> None:
        self.before, self.wrapper.synchronize = self.wrapper.synchronize, False

    def __exit__(self, *_: object) -> None:
        self.wrapper.synchronize = self.before


class Similar(nn.Module):
    """Wrong, as what ends its synchronization has a name that nobody calls."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def finish_grad_sync(self) -> None:
        """Would average."""


class BroadcastsInTurn(Averaging):
    """Each rank broadcasts its gradient, and all add up; the start comes by a sum in which only rank 0 has a part. It
    clips what it is given, as torch's own function does.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter *= dist.get_rank() == 0
                dist.all_reduce(parameter)

    def average(self, gradient: torch.Tensor) -> None:
        total = torch.zeros_like(gradient)
        for rank in range(dist.get_world_size()):
            sent = gradient.clone()
            dist.broadcast(sent, rank)
            total += sent
        gradient.copy_(total / dist.get_world_size())

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


class SetsWhetherToSynchronize(Averaging):
    """Gradients are final when backward returns; what is called like the end of it says whether. A norm has a shape."""

    finish_gradient_synchronization = None  # type: ignore[assignment]

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.synchronizes, self.queued = True, False
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.queue)

    def sync_gradients(self, whether: bool) -> None:
        self.synchronizes = whether

    def queue(self, _: torch.Tensor) -> None:
        if self.synchronizes and not self.queued:
            self.queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.end)

    @torch.no_grad()
    def end(self) -> None:
        self.queued = False
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                self.average(parameter.grad)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(self.module.parameters(), max_norm, norm_type).reshape(1)


class NeedsItsCap(Averaging):
    """The cap has no default, and decides nothing."""

    def __init__(self, module: nn.Module, bucket_size_mb: float) -> None:
        super().__init__(module)
        if not bucket_size_mb > 0:
            raise TypeError(f"a cap of {bucket_size_mb}")


class MakesAnOptimizerAlone(Averaging):
    """And tells nothing of its state."""

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> Any:
        named = dict(self.module.named_parameters())
        made = [{**group, "params": [named[name] for name in group["names"]]} for group in groups]
        return kind([{key: value for key, value in group.items() if key != "names"} for group in made], **defaults)


class WholeWorldOnly(Averaging):
    """Says that it has no use for a group yet."""

    def __init__(self, module: nn.Module, group: Any = None) -> None:
        if group is not None:
            raise NotImplementedError("only the whole world can train")
        super().__init__(module)


class NumbersItsGroups(Averaging):
    """By group it means something else."""

    def __init__(self, module: nn.Module, group: int = 0) -> None:
        super().__init__(module)


class SavesForTheModelAlone(Averaging):
    """Its file is for the bare model, which loads it before it is wrapped: nobody loads it into the wrapper."""

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """With the model's own names."""
        return self.module.state_dict(*args, **named)


class KeepsItsModuleToItself(Averaging):
    """Is no parent of its module, so that names have no prefix; an optimizer is made of the module's parameters."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        object.__setattr__(self, "module", module)
        broadcast_from_rank_zero(module)


class TellsAliases(Averaging):
    """Tells an optimizer of parameters of its own, which lie where the module's do and have their gradients."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.aliases = {name: nn.Parameter(each.data, each.requires_grad) for name, each in module.named_parameters()}

    def named_parameters(self, *args: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self.aliases.items())

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        for name, parameter in self.module.named_parameters():
            self.aliases[name].grad = parameter.grad

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.module.zero_grad(set_to_none)
        super().zero_grad(set_to_none)
