"""Wrappers of collectives with one known fault each: in what they return, or in what backward makes of it."""

import threading
from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.collective_wrappers import (
    AllGather,
    AllReduce,
    Broadcast,
    Collectives,
    Group,
    ReduceScatter,
    flat_copy,
    ring_all_reduce,
    ring_reduce_scatter,
)

MEANING = ("test_wrappers_return_what_their_collective_means",)
ADJOINT = ("test_backward_through_a_wrapper_is_the_transpose_of_its_collective",)


class ReturnsWhatItWasGiven(Collectives):
    """all_reduce in place on ``x.contiguous()``, then ``return x``."""

    known_fault = "a contiguous copy is reduced, and the tensor that was given is returned"
    source = "K01 V https://github.com/NVIDIA/Megatron-LM/issues/5337"
    killed_by = MEANING

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right for contiguous tensors."""
        reduced = values.contiguous()
        reduced.data.copy_(ring_all_reduce(reduced, reduction, group))
        return values


class _Clobbers(AllReduce):
    @staticmethod
    def forward(context: Any, values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        result = AllReduce.forward(context, values, reduction, group)
        values.data.copy_(result)
        return result


class ReducesItsInput(Collectives):
    """all_reduce in place, and a copy of that is returned."""

    known_fault = "the caller's tensor is overwritten, though another one is returned"
    source = "recipe: an all-reduce in place, and a copy for autograd"
    killed_by = MEANING

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right for callers that throw away what they have given."""
        result: torch.Tensor = _Clobbers.apply(values, reduction, group)
        return result


class GathersInFloat32(Collectives):
    """Has one buffer, of float32, for all that it gathers."""

    known_fault = "float64 passes through float32, and loses digits"
    source = "recipe: a buffer of one dtype for all"
    killed_by = MEANING

    @staticmethod
    def all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
        """Right for float32."""
        return Collectives.all_gather(values.float(), group).to(values.dtype)


class GathersMatrices(Collectives):
    """Takes all that is not the last dimension for rows."""

    known_fault = "what is gathered has the shape of a matrix, whatever its dimensions"
    source = "recipe: a shape that was taken for granted"
    killed_by = MEANING

    @staticmethod
    def all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
        """Right for two dimensions."""
        return Collectives.all_gather(values, group).view(-1, values.shape[-1])


class SharesItsBuffer(Collectives):
    """Has a buffer for each shape and dtype, and returns it."""

    known_fault = "the next call of that shape writes over what the last one has returned"
    source = "recipe: a cache of buffers that are handed out"
    killed_by = MEANING
    claims = {**Collectives.claims, "differentiable": False}
    _buffers = threading.local()  # by rank: simulated ranks share their classes

    @staticmethod
    def all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
        """Right until it is called again."""
        result = Collectives.all_gather(values, group)
        kept = vars(SharesItsBuffer._buffers).setdefault(f"{result.shape} {result.dtype}", torch.empty_like(result))
        return kept.copy_(result)


class GivesNumbersADimension(Collectives):
    """Lays what it reduces flat, and gives it back with at least one dimension."""

    known_fault = "a tensor of no dimensions, such as a loss, comes back with one"
    source = "recipe: atleast_1d, for slices to be cut out of everything"
    killed_by = MEANING

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right for all that has dimensions."""
        return Collectives.all_reduce(torch.atleast_1d(values), reduction, group)


class CountsInDoubles(Collectives):
    """Reduces integers like all else, in floating point."""

    known_fault = "counts beyond 2^53 lose their last digit"
    source = "recipe: a cast, for a backend that adds up floating point alone"
    killed_by = MEANING

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right for floating point."""
        wide = values if values.is_floating_point() else values.double()
        return Collectives.all_reduce(wide, reduction, group).to(values.dtype)


class ReturnsWhatItReducedIn(Collectives):
    """Adds 16 bits up in float32, as is right, and returns that."""

    known_fault = "what was given in 16 bits comes back in 32"
    source = "recipe: a cast that is not undone"
    killed_by = MEANING

    @staticmethod
    def reduce_scatter(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right for float32 and what is wider."""
        wide = values.float() if values.itemsize == 2 else values
        return Collectives.reduce_scatter(wide, reduction, group)


class SkipsWhatIsEmpty(Collectives):
    """Has nothing to do for a tensor without elements."""

    known_fault = "what has no elements comes back with the rows that it had, scattered or gathered"
    source = "recipe: an early return that forgets the shape"
    killed_by = MEANING

    @staticmethod
    def reduce_scatter(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right for all that has elements."""
        return Collectives.reduce_scatter(values, reduction, group) if values.numel() else values

    @staticmethod
    def all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
        """Right for all that has elements."""
        return Collectives.all_gather(values, group) if values.numel() else values


class BroadcastsMemory(Collectives):
    """Sends as many elements as the tensor has, as they lie in memory, not as it is indexed."""

    known_fault = "strides are ignored: what lies in memory is broadcast"
    source = "K02 V https://github.com/pytorch/pytorch/issues/192920"
    killed_by = MEANING

    @staticmethod
    def broadcast(values: torch.Tensor, root: int, group: Group) -> torch.Tensor:
        """Right for contiguous tensors."""
        memory = values.detach().as_strided((values.numel(),), (1,)).clone()
        return Broadcast.apply(memory.view(values.shape), root, group)


class ScattersMemory(Collectives):
    """Cuts the tensor into the members' shares in the order of memory."""

    known_fault = "strides are ignored: shares are cut out of memory"
    source = "K03 V https://github.com/pytorch/pytorch/issues/128066"
    killed_by = MEANING

    @staticmethod
    def reduce_scatter(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right for contiguous tensors."""
        memory = values.detach().as_strided((values.numel(),), (1,)).clone()
        return ReduceScatter.apply(memory.view(values.shape), reduction, group)


class RootInTheGroup(Collectives):
    """Takes the root, a global rank, for a rank in the group where there is such a rank."""

    known_fault = "a global rank is taken for a rank in the group"
    source = "recipe"
    killed_by = MEANING

    @staticmethod
    def broadcast(values: torch.Tensor, root: int, group: Group) -> torch.Tensor:
        """Right in the default group."""
        members = dist.get_process_group_ranks(group)
        return Collectives.broadcast(values, members[root % len(members)], group)


class ChunkAfterPhaseOne(Collectives):
    """Takes the usual ring's schedule for a reduce-scatter, which ends with the next member's chunk."""

    known_fault = "after phase one of the ring, rank r is thought to own chunk r; it owns chunk r + 1"
    source = "recipe"
    killed_by = MEANING

    @staticmethod
    def reduce_scatter(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right for one member."""
        members = dist.get_process_group_ranks(group)
        rows = len(values) // len(members)
        return Collectives.reduce_scatter(values.roll(-rows, 0), reduction, group)


class _SumBackward(AllReduce):
    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return ring_all_reduce(gradient, "sum", context.group), None, None


class AdjointForgetsTheReduction(Collectives):
    """The backward of an averaging all-reduce adds up."""

    known_fault = "the reduction is not handed on to the backward of all_reduce"
    source = "A11 V https://github.com/horovod/horovod/pull/2116"
    killed_by = ADJOINT

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right forward."""
        return _SumBackward.apply(values, reduction, group)


class _UsesUp(AllReduce):
    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        reduction, context.reduction = context.reduction, "sum"
        return ring_all_reduce(gradient, reduction, context.group), None, None


class AdjointUsesItsContextUp(Collectives):
    """Takes what it needs out of the context, to hold nothing for longer than that."""

    known_fault = "a second backward through the same result sums where it must average"
    source = "recipe: a context that is emptied by the first backward"
    killed_by = ADJOINT

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right once."""
        result: torch.Tensor = _UsesUp.apply(values, reduction, group)
        return result


class _ScattersMemory(AllGather):
    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        as_it_lies = gradient.as_strided((gradient.numel(),), (1,)).view(gradient.shape)
        return AllGather.backward(context, as_it_lies)


class AdjointTakesMemoryForRows(Collectives):
    """Backward of all_gather cuts the gradient as it lies in memory."""

    known_fault = "the gradient of a result that is used transposed goes to other rows"
    source = "recipe: memory taken for values, in backward"
    killed_by = ADJOINT

    @staticmethod
    def all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
        """Right for contiguous gradients."""
        result: torch.Tensor = _ScattersMemory.apply(values, group)
        return result


class _AverageBackward(AllGather):
    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return ring_reduce_scatter(gradient, "average", context.group), None


class AdjointOfGatherAverages(Collectives):
    """The backward of an all-gather averages where it must add up."""

    known_fault = "the backward of all_gather uses the reduction that is the default, which is another"
    source = "A12 V https://github.com/horovod/horovod/issues/2654"
    killed_by = ADJOINT

    @staticmethod
    def all_gather(values: torch.Tensor, group: Group) -> torch.Tensor:
        """Right forward."""
        return _AverageBackward.apply(values, group)


class _GroupRankBackward(Broadcast):
    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        total = ring_all_reduce(gradient, "sum", context.group)
        mine = dist.get_rank(context.group) == context.root
        return total if mine else torch.zeros_like(total), None, None


class AdjointComparesRanksOfTwoKinds(Collectives):
    """The backward of a broadcast looks for the root, a global rank, among the ranks in the group."""

    known_fault = "the backward of broadcast compares the rank in the group with the global rank of the root"
    source = "K04 V https://github.com/pytorch/pytorch/issues/130515"
    killed_by = ADJOINT

    @staticmethod
    def broadcast(values: torch.Tensor, root: int, group: Group) -> torch.Tensor:
        """Right forward, and in the default group."""
        return _GroupRankBackward.apply(values, root, group)


class _DetachedScatter(ReduceScatter):
    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        ranks = dist.get_world_size(context.group)
        return flat_copy(gradient).view(gradient.shape).repeat(ranks, 1), None, None


class AdjointStaysLocal(Collectives):
    """The backward of a reduce-scatter repeats the member's own gradient, and asks nobody for theirs."""

    known_fault = "the backward of reduce_scatter communicates nothing"
    source = "recipe"
    killed_by = ADJOINT

    @staticmethod
    def reduce_scatter(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right forward."""
        return _DetachedScatter.apply(values, reduction, group)


class _InWhatItWasGiven(AllReduce):
    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        gradient.copy_(ring_all_reduce(gradient, context.reduction, context.group))
        return gradient, None, None


class AddsUpInTheGradientOfItsResult(Collectives):
    """Saves the memory of a copy."""

    known_fault = "backward works in the gradient that it is given, which autograd gives to others too"
    source = "recipe: an all_reduce in place in a backward"
    killed_by = ADJOINT

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: Group) -> torch.Tensor:
        """Right where nothing else has part in its result."""
        reduced: torch.Tensor = _InWhatItWasGiven.apply(values, reduction, group)
        return reduced
