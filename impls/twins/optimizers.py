"""Sharded optimizers that are right in unusual ways."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.faults.optimizers import _Cut
from lockstep.impls.owned_parameters import OwnedParameters


class OwnsBySize(OwnedParameters):
    """A parameter goes to the rank that has the fewest elements so far."""

    claims = {"optimizers": (torch.optim.Muon, torch.optim.Adafactor, torch.optim.RMSprop, torch.optim.Adagrad)}
    odd = "the last rank may own the first parameter, and large ones leave ranks with one alone"

    def owner(self, parameter: nn.Parameter) -> int:
        """The rank with the least; of several, the last."""
        held = [0] * dist.get_world_size()
        for each, rank in self.owners.items():
            held[rank] += each.numel()
        return min(range(len(held)), key=lambda rank: (held[rank], -rank))


class SendsAtOnce(OwnedParameters):
    """All broadcasts are under way together."""

    claims = {"optimizers": (torch.optim.Adagrad,)}
    odd = "broadcasts are launched without waiting, the last parameter first"

    def publish(self, parameters: Iterable[nn.Parameter]) -> None:
        """Waits for all of them in the end."""
        wholes = {each: each.detach().contiguous() for each in reversed([*parameters])}
        sent = [dist.broadcast(whole, src=self.owners[each], async_op=True) for each, whole in wholes.items()]
        for handle in sent:
            handle.wait()
        for each, whole in wholes.items():
            each.data.copy_(whole)


class AveragesInStep(OwnedParameters):
    """Takes the mean itself."""

    claims = {"averages_in_step": True}
    odd = "gradients are each rank's own until the step, which averages them"

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Runs the closure first, so that there are gradients to average."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter in self.owners:
            if parameter.grad is not None:
                whole = parameter.grad.contiguous()
                dist.all_reduce(whole)
                parameter.grad.copy_(whole / dist.get_world_size())
        super().step()
        return loss


class FlatShards(_Cut):
    """Every rank steps a flat part of every parameter."""

    claims = {"optimizers": (torch.optim.RMSprop, torch.optim.Adagrad)}
    odd = "the plain optimizer steps tensors that are no parameters of the model"


class FetchesMissingGradients(OwnedParameters):
    """Ranks that have an averaged gradient hand it to those that have none."""

    claims = {"missing_gradients": True}
    odd = "before a step, each mean that some ranks lack is broadcast by the first rank that has it"

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Runs the closure first, so that there are gradients to hand out."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        there = torch.tensor([float(each.grad is not None) for each in self.owners])
        everybodys = [torch.empty_like(there) for _ in range(dist.get_world_size())]
        dist.all_gather(everybodys, there)
        for parameter, has in zip(self.owners, zip(*(each.tolist() for each in everybodys), strict=True), strict=True):
            if 0 < sum(has) < len(has):
                mean = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
                whole = mean.contiguous()
                dist.broadcast(whole, src=has.index(1.0))
                parameter.grad = mean.copy_(whole)
        super().step()
        return loss
