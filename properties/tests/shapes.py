"""Wrappers in the shapes in which people publish them: of each a right one and two wrong ones."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.owned_parameters import OwnedParameters


def begin_alike(module: nn.Module) -> None:
    """Every rank has rank 0's parameters."""
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)


def average(parameters: Iterable[nn.Parameter]) -> None:
    """Gradients become the mean over ranks."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


class Plain(nn.Module):
    """What the others derive from: it wraps, and averages gradients where it is told to."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        begin_alike(module)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def average(self) -> None:
        average(self.module.parameters())


class Sums(Plain):
    """Wrong: never divides."""

    def average(self) -> None:
        super().average()
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad *= dist.get_world_size()


class MissesTheLast(Plain):
    """Wrong: leaves one parameter out."""

    def average(self) -> None:
        average(list(self.module.parameters())[:-1])


class OneArgument(Plain):
    """Its forward takes one argument."""

    def forward(self, x: Any) -> Any:
        return self.module(x)

    def finish_gradient_synchronization(self) -> None:
        self.average()


class OneArgumentSums(OneArgument, Sums): ...


class OneArgumentMisses(OneArgument, MissesTheLast): ...


class OneClaim(Plain):
    """Declines one claim."""

    claims = {"hook_order": False}

    def finish_gradient_synchronization(self) -> None:
        self.average()


class OneClaimSums(OneClaim, Sums): ...


class OneClaimMisses(OneClaim, MissesTheLast): ...


class Pair(Plain):
    """Two methods around backward, which are given the model and its optimizer."""

    ready = False

    def on_before_backward(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert {*model.parameters()} == {each for group in optimizer.param_groups for each in group["params"]}
        self.ready = True

    def on_after_backward(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert self.ready
        self.ready = False
        self.average()


class PairSums(Pair, Sums): ...


class PairMisses(Pair, MissesTheLast): ...


class ReduceGradients(Plain):
    def reduce_gradients(self) -> None:
        self.average()


class ReduceGradientsSums(ReduceGradients, Sums): ...


class ReduceGradientsMisses(ReduceGradients, MissesTheLast): ...


class Sync(Plain):
    def sync(self) -> None:
        self.average()


class SyncSums(Sync, Sums): ...


class SyncMisses(Sync, MissesTheLast): ...


class AllReduceGrads(Plain):
    def allreduce_grads(self) -> None:
        self.average()


class AllReduceGradsSums(AllReduceGrads, Sums): ...


class AllReduceGradsMisses(AllReduceGrads, MissesTheLast): ...


class Finish(Plain):
    def finish(self) -> None:
        self.average()


class FinishSums(Finish, Sums): ...


class FinishMisses(Finish, MissesTheLast): ...


def average_gradients(model: nn.Module) -> None:
    """No wrapper: it is called with the model after backward."""
    average(model.parameters())


class OfTheModelThatSums:
    @staticmethod
    def average_gradients(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class OfTheModelThatMisses:
    @staticmethod
    def average_gradients(model: nn.Module) -> None:
        average(list(model.parameters())[:-1])


def sync_grads(params: Iterable[nn.Parameter], scale: float = 1.0) -> None:
    """The same, called with the parameters."""
    average(params)


class OfParametersThatSums:
    @staticmethod
    def sync_grads(params: Iterable[nn.Parameter]) -> None:
        OfTheModelThatSums.average_gradients(nn.ParameterList(params))


class OfParametersThatMisses:
    @staticmethod
    def sync_grads(params: Iterable[nn.Parameter]) -> None:
        average(list(params)[:-1])


class TwoNames(Plain):
    """The second is not called."""

    def sync_gradients(self) -> None:
        self.average()

    def finish(self) -> None:
        raise AssertionError


def made_by_a_function(module: nn.Module) -> nn.Module:
    """Its methods are known only once it is made; none of a pair is called in a script."""
    return ReduceGradients(module)


def made_wrong_by_a_function(module: nn.Module) -> nn.Module:
    """The same, wrong."""
    return ReduceGradientsSums(module)


class _Gathered(torch.autograd.Function):
    """The whole of a weight from its pieces; of its gradient each rank gets its piece of the mean."""

    @staticmethod
    def forward(context: Any, shard: torch.Tensor, rows: int, each: int, wrong: str) -> torch.Tensor:
        context.rows, context.each, context.wrong = len(shard), each, wrong
        padded = shard.new_zeros((each, *shard.shape[1:]))
        padded[: len(shard)] = shard
        parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, padded)
        return torch.cat(parts)[:rows]

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        begin = 0 if context.wrong == "first" else dist.get_rank() * context.each
        divisor = 1 if context.wrong == "sum" else dist.get_world_size()
        return total[begin : begin + context.rows] / divisor, None, None, None


class ShardsLayers(nn.Module):
    """FSDP-like: the weights of linear layers and embeddings are in pieces, under their own names; the caller makes the
    optimizer of what there is. All else is averaged when the caller says that backward is over.
    """

    wrong = ""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.layers = module, dict[str, tuple[nn.Module, int, int]]()
        begin_alike(module)
        ranks, rank = dist.get_world_size(), dist.get_rank()
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                rows = len(layer.weight)
                each = -(-rows // ranks)
                shard = layer.weight.detach()[rank * each : (rank + 1) * each].clone()
                layer.weight = nn.Parameter(shard, requires_grad=layer.weight.requires_grad)
                self.layers[name] = layer, rows, each
                layer.forward = self.forward_of(layer, rows, each)

    def forward_of(self, layer: Any, rows: int, each: int) -> Any:
        def forward(inputs: torch.Tensor) -> torch.Tensor:
            weight = _Gathered.apply(layer.weight, rows, each, self.wrong)
            if isinstance(layer, nn.Linear):
                return nn.functional.linear(inputs, weight, layer.bias)
            return nn.functional.embedding(inputs, weight)

        return forward

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        cut = {layer.weight for layer, _, _ in self.layers.values()}
        average(parameter for parameter in self.module.parameters() if parameter not in cut)

    def gather_full_params(self) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            found = dict(self.module.named_parameters())
            wholes = {
                f"{name}.weight": _Gathered.apply(layer.weight, rows, each, self.wrong)
                for name, (layer, rows, each) in self.layers.items()
            }
            return {**found, **wholes}


class ShardsLayersTellingNothing(ShardsLayers):
    """No method gathers them."""

    claims = {"stage": 3}
    gather_full_params = None  # type: ignore[assignment]


class ShardsLayersUndeclared(ShardsLayers):
    """The same, and nothing says so."""

    gather_full_params = None  # type: ignore[assignment]


class ShardsLayersThatSum(ShardsLayers):
    """Wrong: a piece of the sum."""

    wrong = "sum"


class ShardsLayersOfRankZero(ShardsLayers):
    """Wrong: every rank has the gradient of the first piece."""

    wrong = "first"


class ForCUDA(Plain):
    """Orders its work on a GPU."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.stream = torch.cuda.Stream()

    def finish_gradient_synchronization(self) -> None:
        done = torch.cuda.Event(enable_timing=True)
        torch.cuda.nvtx.range_push("average")
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), torch.cuda.nvtx.range("sum"):
            self.average()
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.record_stream(self.stream)
            done.record()
        torch.cuda.current_stream().wait_event(done)
        torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()


class Sharded(OwnedParameters):
    """A sharded optimizer made of parameters and the class of a plain one; gradients are averaged for it."""


class ShardedSums(Sharded):
    """Wrong: steps by the sum."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.owners:
            if parameter.grad is not None:
                parameter.grad *= dist.get_world_size()
        return super().step(closure)


class ShardedMisses(Sharded):
    """Wrong: does not send the parameter that comes last."""

    def publish(self, parameters: Iterable[nn.Parameter]) -> None:
        super().publish(list(parameters)[:-1])


class Averaging(OwnedParameters):
    """The same, which averages gradients in its step."""

    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        average(self.owners)
        super().step()
        return loss


class AveragingSums(ShardedSums, Averaging): ...


class AveragingMisses(ShardedMisses, Averaging): ...
