"""ZeRO-3: parameters are sharded too, also known as fully sharded data parallelism; with replicas, as hybrid (HSDP).

A *unit* is a module that has parameters of its own. They are gathered before its forward and freed after it, gathered
again when backward reaches it, and freed when backward has left it. Its gradient is then reduced, and freed.

Every rank must call the same units in the same order, and backward must reach them in the same order. If this rank did
not use the output of a unit, backward passes it by; the unit is gathered and reduced like the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.sharded import ShardedDataParallel
from lockstep.impls.shards import Flat
from lockstep.impls.static_buckets import assign_buckets
from lockstep.impls.wrapper import ROBUST, Group


class UnitCall:
    """One call of a unit's forward."""

    def __init__(self, module: nn.Module, flats: list[Flat]) -> None:
        self.module, self.flats = module, flats


class Zero3(ShardedDataParallel):
    """Sharded parameters. Each unit's parameters of one dtype are cut over the ranks of a shard group; there are
    ``replicas`` of these.
    """

    claims = {
        **ROBUST,
        "outside_reads": False,  # a unit is gathered when it is called
        "losses_read": False,
        "double_backward": False,
        "acts_alone": False,
        "replaced_parameters": False,
        "optimizer_before": False,
        "copied_models": False,
        "accumulation": True,
        "backwards": "anywhere",
        "unused": "zero",
        "idle_ranks": False,  # a unit is gathered for backward when backward comes to it
        "stage": 3,
        "exact_memory": True,
        "same_bits": True,
        "reloads": True,
        "several_optimizers": True,
        "sharded_by": "units",
        "schedule": "gather twice",
        "masters": True,
        "strided_parameters": True,
        "replicas": True,
        "direct_forwards": True,
    }

    def __init__(self, module: nn.Module, replicas: int = 1, kernels: bool | None = None) -> None:
        units = {unit: list(unit.parameters(recurse=False)) for unit in module.modules()}
        super().__init__(module, list(by_unit(units)), kernels, shard_and_replica_groups(replicas))
        self._shards: dict[nn.Parameter, torch.Tensor] = {}  # this rank's elements of each parameter
        self._users: dict[Flat, int] = dict.fromkeys(self.flats, 0)  # for how many calls it is gathered
        self._to_come: list[UnitCall] = []  # calls whose backward is still to come, in the order of forward
        self._open: list[UnitCall] = []  # calls that backward is in
        self._begun: list[UnitCall] = []  # calls that this backward has come to
        self._unreduced: list[Flat] = []  # what this synchronization has still to reduce
        for flat in self.flats:
            own = torch.cat([flat.piece(member, member.data) for member in flat.members])
            self._shards |= flat.pieces(own)
            for member in flat.members:
                member.data = member.data.clone()  # storage of its own, to be freed
                member.__deepcopy__ = refuse_a_copy
            self._free(flat)
        for unit, parameters in units.items():
            if parameters:
                flats = list(dict.fromkeys(self.flat_of[parameter] for parameter in parameters))
                # Before those that the caller has registered, which may read parameters.
                unit.register_forward_pre_hook(lambda *_, flats=flats: self._gather(flats), prepend=True)
                unit.register_forward_hook(
                    lambda unit, _, outputs, flats=flats: self._after_forward(UnitCall(unit, flats), outputs),
                    always_call=True,
                )
        # Before all others, and of the module's own: a caller may go around this one.
        module.register_forward_pre_hook(lambda *_: self._before_forward(), prepend=True)

    # Parameters

    def values(self, parameter: nn.Parameter) -> torch.Tensor:
        """This rank's elements of a parameter."""
        return self._shards[parameter]

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Do nothing: other ranks gather the elements when they need them."""

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter by name."""
        wholes = [flat.all_gather(self._shards, flat.members[0].dtype) for flat in self.flats]
        return {self._names[member]: whole for each in wholes for member, whole in each.items()}

    def load_parameter(self, parameter: nn.Parameter, whole: torch.Tensor) -> None:
        """Load one parameter."""
        self._shards[parameter].copy_(self.flat_of[parameter].piece(parameter, whole))

    def _gather(self, flats: list[Flat]) -> None:
        for flat in flats:
            if not self._users[flat]:
                for member, whole in flat.all_gather(self._shards, flat.members[0].dtype).items():
                    member.untyped_storage().resize_(member.nbytes)
                    member.data.copy_(whole)  # through .data: autograd is not to take it for a change
            self._users[flat] += 1

    def _release(self, flats: list[Flat]) -> None:
        for flat in flats:
            self._users[flat] -= 1
            if not self._users[flat]:
                self._free(flat)

    def _free(self, flat: Flat) -> None:
        for member in flat.members:
            member.untyped_storage().resize_(0)

    # Forward

    def _before_forward(self) -> None:
        """Close the calls that a backward cut short has left open."""
        for call in self._open:
            self._release(call.flats)
        self._open, self._to_come, self._begun = [], [], []
        if self.synchronize:
            self._unreduced = self.trained_flats()

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        self._release(call.flats)
        if torch.is_grad_enabled():
            self._to_come.append(call)
            if not (isinstance(outputs, torch.Tensor | Mapping | tuple | list | None) or is_dataclass(outputs)):
                kind = type(outputs).__name__  # not None, where its forward has raised
                raise NotImplementedError(f"a unit gave a {kind}: tensors are found in tuples, mappings, dataclasses")
            for tensor in tensors_in(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _, call=call: self._before_backward(call))
                    if tensor._base is not None and not tensor._base.is_leaf:  # a view changed in place loses its hooks
                        tensor._base.register_hook(lambda _, call=call: self._before_backward(call, at_last=True))

    # Backward

    def _before_backward(self, call: UnitCall, at_last: bool = False) -> None:
        """Called before the backward of a unit. ``at_last``: a gradient has reached the base of a view, maybe long
        after backward left the unit.
        """
        if at_last and call in self._begun:
            return
        if torch.is_grad_enabled():
            self.refuse_a_graph()
        if not self._open:
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        while call in self._to_come:
            self._begin(self._to_come.pop())
        if call not in self._open:
            self._begin(call)

    def refuse_a_graph(self) -> None:
        """Of gradients, whose own backward would need the parameters once more."""
        raise NotImplementedError(
            "what is sharded can be differentiated once: parameters are freed when backward leaves"
        )

    def _begin(self, call: UnitCall) -> None:
        """Close every call that this one is not inside of, and gather."""
        self._begun.append(call)
        self._open.append(call)  # first: what it shares with one that is closed is not to be reduced yet
        for other in self._open[-2::-1]:
            if call.module not in other.module.modules():
                self._end(other)
        self._gather(call.flats)

    def _end(self, call: UnitCall) -> None:
        """Free the parameters; reduce and free the gradients that are complete."""
        self._open.remove(call)
        self._release(call.flats)
        awaited = {flat for other in (*self._open, *self._to_come) for flat in other.flats}
        if self.synchronize:
            for flat in call.flats:
                if flat not in awaited and any(member.requires_grad for member in flat.members):
                    self._reduce(flat)

    def _reduce(self, flat: Flat) -> None:
        if flat in self._unreduced:
            self._unreduced.remove(flat)
        self.settle(self.reduce(flat))
        for member in flat.members:
            member.grad = None

    def _after_backward(self) -> None:
        while self._to_come:
            self._begin(self._to_come.pop())
        for call in self._open[::-1]:
            self._end(call)
        self._begun.clear()

    def finish_gradient_synchronization(self) -> None:
        """Reduce the gradients of units that were not called."""
        for flat in self._unreduced[:]:
            self._reduce(flat)


def refuse_a_copy(_: Any) -> NoReturn:
    """Of a parameter that is sharded: a copy would have its tensor's memory, of which there is none."""
    raise NotImplementedError("a model that is sharded cannot be copied; load what full_parameters tells")


def by_unit(units: Mapping[nn.Module, list[nn.Parameter]]) -> Iterator[list[nn.Parameter]]:
    """Each unit's parameters, by dtype and by whether they are trained; a tied one goes with the first of its units."""
    seen: set[nn.Parameter] = set()
    for parameters in units.values():
        new = [parameter for parameter in dict.fromkeys(parameters) if parameter not in seen]
        seen.update(new)
        for trained in (True, False):
            yield from assign_buckets([each for each in new if each.requires_grad is trained], float("inf"))


def shard_and_replica_groups(replicas: int) -> tuple[Group, Group]:
    """Of w ranks, ranks q s to (q + 1) s - 1 share replica q out, s = w / replicas; ranks s apart hold the same."""
    ranks = dist.get_world_size()
    if not 1 <= replicas <= ranks or ranks % replicas:
        raise ValueError(f"{replicas} replicas: {ranks} ranks cannot be shared evenly by so many")
    if replicas == 1:
        return None, None
    size = ranks // replicas
    shards = [list(range(first, first + size)) for first in range(0, ranks, size)]
    copies = [list(range(first, ranks, size)) for first in range(size)]
    mine = dist.get_rank()
    groups = [(members, dist.new_group(members)) for members in (*shards, *copies)]  # every rank makes all of them
    mine_of = [group for members, group in groups if mine in members]
    return mine_of[0], mine_of[1]


def tensors_in(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a module gave: itself one, or in tuples, lists, mappings and dataclasses."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        for each in outputs.values():
            yield from tensors_in(each)
    elif isinstance(outputs, tuple | list):
        for each in outputs:
            yield from tensors_in(each)
    elif is_dataclass(outputs):
        yield from tensors_in([getattr(outputs, field.name) for field in fields(outputs)])
