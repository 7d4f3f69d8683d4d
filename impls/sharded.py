"""The base of ZeRO's stages: averaged gradients and optimizer state in pieces, and all operations on these.

A stage decides when gradients are reduced and which tensors are whole in between. A parameter that no rank used has a
gradient of zeros. `properties.sharded.Sharded` tells the meaning of the methods.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.average import average_
from lockstep.impls.sharded_optimizer import ShardedOptimizer
from lockstep.impls.shards import Flat, Reduction
from lockstep.impls.static_buckets import assign_buckets
from lockstep.impls.wrapper import ROBUST, DataParallel, Group, torch_groups

# What is not claimed by a stage that holds more than it needs, or moves it more often.
HOLDS_MORE = {"exact_memory": False, "sharded_by": None, "schedule": None, "cost": False}
# What the two claim alike that shard no parameters.
IN_BUCKETS = {
    **ROBUST,
    "replaced_parameters": False,
    "optimizer_before": False,
    "accumulation": True,
    "cap_from": "first step",
    "unused": "zero",
    "idle_ranks": True,
    "masters": True,
    "moved_parameters": True,
    "exact_memory": True,
    "same_bits": True,
    "reloads": True,
    "several_optimizers": True,
    "writes_weights": True,
    "swaps_weights": True,
    "sharded_by": "buckets",
}


def buckets(module: nn.Module, cap: float) -> list[list[nn.Parameter]]:
    """Buckets as in `impls.static_buckets`; frozen parameters are apart, so that they need not travel."""
    parameters = list(module.parameters())[::-1]
    kinds = ([each for each in parameters if each.requires_grad is trained] for trained in (True, False))
    return [bucket for kind in kinds for bucket in assign_buckets(kind, cap)]


class ShardedDataParallel(DataParallel):
    """The base class. ``means``: this rank's piece of the averaged gradient, of each parameter that has one.

    ``cut``: the rule of which rank owns which elements.
    """

    cut = Flat

    def __init__(
        self,
        module: nn.Module,
        members: Sequence[list[nn.Parameter]],
        kernels: bool | None = None,
        groups: tuple[Group, Group] | None = None,
        process_group: Group = None,
    ) -> None:
        """``members``: the parameters of each `Flat`. ``groups``: the ranks that share one out, and those that hold the
        same share.

        None: all training ranks share one out, and no two hold the same share.
        """
        super().__init__(module, process_group)
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._by_name = dict(module.named_parameters(remove_duplicate=False))
        self._kernels, (group, self._replicas) = kernels, groups or (process_group, None)
        self.flats = [self.cut(each, group) for each in members]
        self.flat_of = {member: flat for flat in self.flats for member in flat.members}
        self.means: dict[nn.Parameter, torch.Tensor] = {}
        self.stepped_by: dict[nn.Parameter, ShardedOptimizer] = {}

    @property
    def optimizer(self) -> ShardedOptimizer | None:
        """The last optimizer that was made; most callers make one."""
        return next(reversed(self.stepped_by.values()), None)

    def values(self, parameter: nn.Parameter) -> torch.Tensor:
        """This rank's elements of a parameter."""
        return self.flat_of[parameter].piece(parameter, parameter.data)

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Tells all ranks this rank's new elements."""
        for flat in self.flats:
            if any(member in stepped for member in flat.members):
                pieces = {member: stepped.get(member, self.values(member)) for member in flat.members}
                for member, whole in flat.all_gather(pieces, flat.members[0].dtype).items():
                    member.data.copy_(whole)

    def reduce(self, flat: Flat) -> Reduction:
        """Begin to reduce the accumulated gradients."""
        return flat.reduce_scatter({member: member.grad for member in flat.members})

    def settle(self, reduction: Reduction) -> None:
        """Wait for a reduction, and add its mean over all ranks to the means."""
        own = reduction.wait()
        if self._replicas is not None:
            dist.all_reduce(own, group=self._replicas)
        average_(own, dist.get_world_size(self.group), self._kernels)
        members = reduction.flat.members
        alike = all(member.requires_grad and member not in self.means for member in members)
        for member, piece in reduction.flat.pieces(own):
            if member in self.means:
                self.means[member] += piece
            elif member.requires_grad:
                self.means[member] = piece if alike else piece.clone()  # a slice of the whole would keep all of it

    def trained_flats(self) -> list[Flat]:
        """The flats with a member that is trained at present."""
        return [flat for flat in self.flats if any(member.requires_grad for member in flat.members)]

    def make_optimizer(
        self,
        kind: type[torch.optim.Optimizer],
        groups: Sequence[Mapping[str, Any]],
        masters: bool = False,
        **defaults: Any,
    ) -> ShardedOptimizer:
        """An optimizer of this rank's pieces; others may have others."""
        told = torch_groups(groups, self._by_name)
        optimizer = ShardedOptimizer(self, kind, told, masters, self._kernels, **defaults)
        self.stepped_by |= {member: optimizer for group in told for member in group["params"]}
        return optimizer

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip by the global norm. Each element has one owner, so the p-norm of a gradient is that of its pieces'
        p-norms.

        The rule is torch's: every gradient's norm in its own dtype, then the norm of the norms in the widest.
        """
        if not self.means:
            return torch.zeros(())
        group, device = self.flats[0].group, next(iter(self.means.values())).device
        mine = torch.zeros(len(self.means), dtype=torch.float64, device=device)
        for place, mean in enumerate(self.means.values()):
            if mean.numel():
                mine[place] = torch.linalg.vector_norm(mean, norm_type, dtype=torch.float64)
        every = mine.new_empty(dist.get_world_size(group) * len(mine))
        dist.all_gather_into_tensor(every, mine, group=group)
        wholes = torch.linalg.vector_norm(every.view(-1, len(mine)), norm_type, dim=0)
        dtypes = [parameter.dtype for parameter in self.means]
        widest = functools.reduce(torch.promote_types, dtypes)
        norms = [whole.to(dtype).to(widest) for whole, dtype in zip(wholes, dtypes, strict=True)]
        norm = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        coefficient = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for mean in self.means.values():
            mean.mul_(coefficient)
        return norm

    def unscale_(self, scale: float) -> bool:
        """Divide by the loss scale. An overflow is in the piece of one rank; the others learn of it here."""
        for mean in self.means.values():
            mean.div_(scale)
        finite = torch.tensor([float(all(bool(mean.isfinite().all()) for mean in self.means.values()))])
        finite = finite.to(next(iter(self._names)).device)
        dist.all_reduce(finite, op=dist.ReduceOp.MIN, group=self.group)
        return bool(finite.item())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop, or zero, the accumulated and the averaged gradients."""
        for parameter in self._names:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        for mean in self.means.values():
            mean.zero_()
        if set_to_none:
            self.means.clear()

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter by name."""
        return {name: parameter.detach() for parameter, name in self._names.items()}

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        """Every averaged gradient by name."""
        found: dict[str, torch.Tensor | None] = dict.fromkeys(self._names.values())
        for flat in self.flats:
            if any(member in self.means for member in flat.members):
                for member, whole in flat.all_gather(self.means, flat.members[0].dtype).items():
                    found[self._names[member]] = whole if member in self.means else None
        return found

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The state of every parameter by name."""
        found: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self._names.values()}
        for flat in self.flats:
            stepped = ((member, self.stepped_by.get(member)) for member in flat.members)
            states = {member: optimizer.state(member) for member, optimizer in stepped if optimizer is not None}
            for key in dict.fromkeys(key for state in states.values() for key in state):
                held = {member: state[key] for member, state in states.items() if key in state}
                if key == "step":
                    whole = {member: step.clone() for member, step in held.items()}
                else:
                    whole = flat.all_gather(held, next(iter(held.values())).dtype)
                for member in held:
                    found[self._names[member]][key] = whole[member]
        return found

    @torch.no_grad()
    def load_full(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """Load whole parameters and whole state; each rank keeps its pieces."""
        for parameter, name in self._names.items():
            self.load_parameter(parameter, parameters[name])
            if (optimizer := self.stepped_by.get(parameter)) is not None:
                flat, state = self.flat_of[parameter], None
                if optimizer_state is not None:
                    state = {
                        key: value.clone() if key == "step" else flat.piece(parameter, value).clone()
                        for key, value in optimizer_state[name].items()
                    }
                optimizer.load(parameter, state)

    def load_parameter(self, parameter: nn.Parameter, whole: torch.Tensor) -> None:
        """Load one parameter."""
        parameter.data.copy_(whole)
