"""Sharded training done in other ways, and right."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.sharded import HOLDS_MORE
from lockstep.impls.sharded_optimizer import ShardedOptimizer
from lockstep.impls.shards import Flat, Reduction
from lockstep.impls.wrapper import Group
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero2 import Zero2
from lockstep.impls.zero3 import Zero3

Tensors = Mapping[nn.Parameter, torch.Tensor | None]


class Interleaved(Flat):
    """Element i belongs to rank i modulo the number of ranks."""

    def __init__(self, members: list[nn.Parameter], group: Group = None) -> None:
        super().__init__(members, group)
        self.ranks, offset = dist.get_world_size(group), 0
        for member, size in zip(members, self.sizes, strict=True):
            self.owned[member] = slice((dist.get_rank(group) - offset) % self.ranks, size, self.ranks)
            offset += size
        self.counts = [len(range(size)[owned]) for size, owned in zip(self.sizes, self.owned.values(), strict=True)]

    def pack(self, tensors: Tensors) -> torch.Tensor:
        return super().pack(tensors).view(self.share, self.ranks).t().reshape(-1)

    def unpack(self, whole: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
        return super().unpack(whole.view(self.ranks, self.share).t().reshape(-1))


class InterleavedZero1(Zero1):
    """Each rank owns every n-th element."""

    claims = {**Zero1.claims, "sharded_by": None}
    cut = Interleaved
    odd = "elements are dealt out one by one instead of in slices"


class InterleavedZero3(Zero3):
    """The same of parameters too."""

    claims = {**Zero3.claims, "sharded_by": None}
    cut = Interleaved
    odd = "elements are dealt out one by one instead of in slices"


class FreesWholeGradients(Zero2):
    """Claims stage 1, and keeps no more of gradients than it steps."""

    claims = {**Zero2.claims, "stage": 1, "sharded_by": None, "schedule": None}
    odd = "holds less than its stage has to: whole gradients are gone once they are reduced"


class StepsUseGradientsUp(Zero2):
    """As an engine's, whose step ends a window: DeepSpeed's does."""

    claims = {**Zero2.claims, "outlive_steps": False, "several_optimizers": False}
    odd = "after a step there are no gradients any more"

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        optimizer = super().make_optimizer(kind, groups, masters, **defaults)
        optimizer.inner.register_step_post_hook(lambda *_: self.zero_grad())
        return optimizer


class AllReduced(Reduction):
    """The whole sum, of which this rank takes its slice."""

    def begin(self, sent: torch.Tensor) -> torch.Tensor:
        self._work = dist.all_reduce(sent, group=self.flat.group, async_op=True)
        return sent.view(-1, self.flat.share)[dist.get_rank(self.flat.group)]


class ByAllReduce(Flat):
    """All-reduce in place of reduce-scatter."""

    reduction = AllReduced


class AllReduceZero2(Zero2):
    """Moves twice as much, and keeps as little."""

    cut = ByAllReduce
    odd = "gradients are all-reduced, and each rank keeps its slice"


class FusedZero1(Zero1):
    """Steps by torch's fused kernels, which round the elements left over at the end of a vector in another way."""

    claims = {**Zero1.claims, "same_bits": False}
    odd = "an element's bits depend on how the parameter is cut"

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        # Torch's fused SGD fails where a parameter is stepped later than others: docs/findings.
        return super().make_optimizer(kind, groups, masters, **defaults, fused=kind is not torch.optim.SGD)


class WrapsWithItsOptimizer(Zero1):
    """Wraps where its optimizer is made, as fairscale's ShardedDDP does, which needs one to be constructed."""

    odd = "nothing is wrapped or broadcast before make_optimizer"
    claims = {**Zero1.claims, "several_optimizers": False}  # each would wrap anew

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        nn.Module.__init__(self)
        self._given = (module, bucket_cap_mb)

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        super().__init__(*self._given)
        return super().make_optimizer(kind, groups, masters, **defaults)


class AdamOfItsOwn(torch.optim.Adam):
    """In the form in which it was published: Kingma and Ba, "Adam", 2015, algorithm 1, with L2 decay."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Unlike torch's it forms both corrected moments."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
                state["step"] += 1
                count, gradient = int(state["step"]), -parameter.grad if group["maximize"] else parameter.grad
                if group["weight_decay"]:
                    gradient = gradient + group["weight_decay"] * parameter
                mean = state["exp_avg"].mul_(first).add_((1 - first) * gradient)
                square = state["exp_avg_sq"].mul_(second).add_((1 - second) * (gradient * gradient))
                mean, square = mean / (1 - first**count), square / (1 - second**count)
                parameter -= group["lr"] * mean / (square.sqrt() + group["eps"])


class Zero1WithAnAdamOfItsOwn(Zero1):
    """Steps by `AdamOfItsOwn` where Adam is asked for."""

    claims = {**Zero1.claims, "same_bits": False}
    odd = "Adam in another form than torch's, which rounds otherwise"

    def make_optimizer(self, kind: Any, groups: Any, masters: bool = False, **defaults: Any) -> ShardedOptimizer:
        return super().make_optimizer(AdamOfItsOwn if kind is torch.optim.Adam else kind, groups, masters, **defaults)


class LateZero2(Zero2):
    """Nothing is reduced before backward is over."""

    claims = {**Zero2.claims, "sharded_by": None}
    odd = "gradients are reduced after backward, last bucket first"

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        pass

    def finish_gradient_synchronization(self) -> None:
        self._to_send.reverse()
        super().finish_gradient_synchronization()


class AgreesBeforeItClips(Zero2):
    """After an overflow, of which `unscale_` has told all ranks, clipping knows that the step will be skipped."""

    odd = "clipping after an overflow communicates nothing, says infinity, and leaves gradients alone, on every rank"
    finite = True

    def unscale_(self, scale: float) -> bool:
        self.finite = super().unscale_(scale)
        return self.finite

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        return super().clip_grad_norm_(max_norm, norm_type) if self.finite else torch.tensor(torch.inf)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.finite = True


class WholeParameters(Flat):
    """Each parameter belongs to one rank, in turn; ranks own unequal numbers of elements."""

    def __init__(self, members: list[nn.Parameter], group: Group = None) -> None:
        super().__init__(members, group)
        self.ranks = dist.get_world_size(group)
        for place, (member, size) in enumerate(zip(members, self.sizes, strict=True)):
            self.owned[member] = slice(0, size if place % self.ranks == dist.get_rank(group) else 0)
        self.counts = [owned.stop for owned in self.owned.values()]
        self.share = max(sum(self.sizes[rank :: self.ranks]) for rank in range(self.ranks))
        self.padded = self.share * self.ranks

    def pack(self, tensors: Tensors) -> torch.Tensor:
        rows = self.members[0].new_zeros(self.ranks, self.share)
        for rank, row in enumerate(rows):
            mine = self.sizes[rank :: self.ranks]
            for part, member in zip(row[: sum(mine)].split(mine), self.members[rank :: self.ranks], strict=True):
                if (tensor := tensors.get(member)) is not None:
                    part.view(member.shape).copy_(tensor)
        return rows.view(-1)

    def unpack(self, whole: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
        found = {}
        for rank, row in enumerate(whole.view(self.ranks, self.share)):
            mine = self.sizes[rank :: self.ranks]
            for part, member in zip(row[: sum(mine)].split(mine), self.members[rank :: self.ranks], strict=True):
                found[member] = part.view(member.shape)
        return {member: found[member] for member in self.members}


class WholeParameterZero1(Zero1):
    """Whole parameters dealt out in turn, as ZeroRedundancyOptimizer deals out the largest first."""

    # A bucket of few parameters is padded to equal shares, beyond any cap.
    claims = {**Zero1.claims, "sharded_by": None, "bucket_cap": False}
    cut = WholeParameters
    odd = "each parameter is owned whole by one rank"


class ByBroadcasts(Flat):
    """Each rank broadcasts its slice."""

    def all_gather(
        self, pieces: Mapping[nn.Parameter, torch.Tensor], dtype: torch.dtype
    ) -> dict[nn.Parameter, torch.Tensor]:
        whole = torch.zeros(self.padded, dtype=dtype, device=self.members[0].device)
        mine = dist.get_rank(self.group)
        for rank, part in enumerate(whole.split(self.share) if self.total else ()):
            if rank == mine:
                for member, own in self.pieces(part[: sum(self.counts)]):
                    if member in pieces:
                        own.copy_(pieces[member])
            dist.broadcast(part, dist.get_global_rank(self.group or dist.group.WORLD, rank), group=self.group)
        return self.unpack(whole)


class BroadcastZero3(Zero3):
    """Gathers units by broadcasts."""

    cut = ByBroadcasts
    odd = "each rank broadcasts its slice, in place of one all-gather"


class AlwaysKeepsMasters(Zero2):
    """Steps float32 masters of 16-bit parameters whether it is asked to or not, as mixed precision mostly does."""

    claims = {**Zero2.claims, "masters": "always"}
    odd = "16-bit parameters have float32 masters without being asked to"

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], *others: Any, **defaults: Any
    ) -> ShardedOptimizer:
        """See `properties.sharded.Sharded`; like others of its kind it knows no ``masters``."""
        if others or "masters" in defaults:
            raise TypeError("make_optimizer() got an unexpected keyword argument 'masters'")
        return super().make_optimizer(kind, groups, True, **defaults)


class PublishesEverything(Zero1):
    """Gathers all parameters after each step, stepped or not."""

    odd = "after each step all buckets are gathered, also those of which nothing was stepped"
    claims = {**Zero1.claims, **HOLDS_MORE}

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """As if all had been stepped."""
        super().publish({parameter: stepped.get(parameter, self.values(parameter)) for parameter in self.flat_of})


class LooksForWrites(Zero1):
    """Steps pieces in memory of its own, and looks before each use whether somebody has written into the parameters."""

    odd = "pieces of the parameters are kept apart, and taken anew where a parameter holds something else"
    claims = {**Zero1.claims, **HOLDS_MORE}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self._own: dict[nn.Parameter, torch.Tensor] = {}
        super().__init__(module, bucket_cap_mb)

    def values(self, parameter: nn.Parameter) -> torch.Tensor:
        """The kept values, if the parameter still holds them."""
        there = super().values(parameter)
        if parameter not in self._own or not torch.equal(self._own[parameter], there):
            self._own[parameter] = there.clone()
        return self._own[parameter]
