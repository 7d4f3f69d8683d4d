"""What ranks run in the tests of asynchrony beyond the laws: torch's own wrappers with their options, by name."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from lockstep.impls.wrapper import DataParallel

LEARNING_RATE = 0.5
Wrap = Callable[[Any], tuple[Any, Any]]  # a model, to what wraps it and its optimizer


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)


def ddp(hook: Any = None, **options: Any) -> Wrap:
    def wrap(model: Any) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001, **options)
        if hook is not None:
            wrapped.register_comm_hook(None, hook)
        return wrapped, sgd(wrapped.parameters())

    return wrap


def fsdp2(model: Any) -> tuple[Any, Any]:
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, sgd(model.parameters())


def zero(overlap: bool) -> Wrap:
    def wrap(model: Any) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(
            wrapped.parameters(), torch.optim.SGD, parameters_as_bucket_view=overlap, lr=LEARNING_RATE
        )
        return wrapped, optimizer

    return wrap


WRAPPERS: dict[str, Wrap] = {
    "ddp": ddp(),
    "ddp, static graph": ddp(static_graph=True),
    "ddp, bucket views and unused": ddp(gradient_as_bucket_view=True, find_unused_parameters=True),
    "ddp, all-reduce hook": ddp(allreduce_hook),
    "ddp, fp16 hook": ddp(fp16_compress_hook),
    "zero": zero(False),
    "zero, bucket views": zero(True),
    "fsdp2": fsdp2,
}


class WaitsForNoReduction(DataParallel):
    """WRONG on purpose: forgets the handles of its asynchronous all-reduces."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, async_op=True)


def train(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: a name of ``WRAPPERS``. Small integers and powers of two, so that sums are exact in any order."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).remainder(5 + number).sub(2).view_as(parameter))
    wrapped, optimizer = WRAPPERS[payload](model)
    for step in range(2):
        optimizer.zero_grad()
        wrapped(torch.arange(8.0).view(2, 4).add(rank + step).remainder(3)).sum().backward()
        optimizer.step()
    whole = [getattr(p, "to_local", lambda p=p: p)().detach().double().numpy().copy() for p in wrapped.parameters()]
    return {"parameters": whole}
