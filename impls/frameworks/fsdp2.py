"""torch's FSDP2: `fully_shard` on every submodule and on the root, each parameter cut along its first dimension.

It makes nothing equal at the start, so the adapter does. Gradients are final when backward returns. A parameter of no
dimensions is refused. In float32 it averages as the backend does; in float64 it divides before and after the sum.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from lockstep.impls.wrapper import broadcast_from_rank_zero, torch_groups


class FSDP2(nn.Module):
    """FSDP2 with its defaults. Every rank calls the same units in the same order and uses the same parameters:
    otherwise gathers and reductions do not pair up. ``replicas``: the number of shard groups in the world (HSDP).

    Not claimed (docs/findings):

        parameters that another module reads    it reads a shard, which ends in an error, or, for a parameter of one
                                                element, in a wrong gradient
        evaluations                             a step may be forgotten after one
        windows dropped halfway                 they come back: accumulated gradients cannot be reached
    """

    claims = {
        "output_classes": torch.__version__ >= "2.12",  # before, it did not look into them (docs/findings)
        "hook_order": False,
        "accumulation": True,
        "drops_windows": False,
        "replaced_gradients": True,
        "several_forwards": True,
        "leaves_random_numbers": True,
        "final_in_hooks": True,
        "in_place": False,  # of views (docs/findings)
        "backwards": "anywhere",
        "stage": 3,
        "same_bits": True,
        "reloads": True,
        "several_optimizers": True,
        "writes_weights": True,
        "replicas": True,
        "scalars": False,
        "schedule": "gather once",
        "cost": True,
        "other_models": True,
        "evaluates": False,
        "direct_forwards": True,
    }
    options: dict[str, Any] = {}

    def __init__(self, module: nn.Module, replicas: int = 1) -> None:
        super().__init__()
        broadcast_from_rank_zero(module)
        shape = (dist.get_world_size(),) if replicas == 1 else (replicas, dist.get_world_size() // replicas)
        device = next(module.parameters()).device.type
        mesh = init_device_mesh(device, shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
        for unit in module.children():
            fully_shard(unit, mesh=mesh, **self.options)
        self.module: Any = fully_shard(module, mesh=mesh, **self.options)
        self.sharded = dict(module.named_parameters(remove_duplicate=False))
        self._synchronizes = True
        self.optimizers: list[torch.optim.Optimizer] = []

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients accumulate inside, whole and without communication."""
        before = self._synchronizes
        self._set_sync(False)
        try:
            yield
        finally:
            self._set_sync(before)

    def _set_sync(self, synchronizes: bool) -> None:
        self._synchronizes = synchronizes
        self.module.set_requires_gradient_sync(synchronizes)

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> torch.optim.Optimizer:
        """An optimizer of shards."""
        optimizer = kind(torch_groups(groups, self.sharded), **defaults)
        self.optimizers.append(optimizer)
        return optimizer

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """torch's own function understands shards, but fails for the largest element where a shard is empty."""
        if norm_type != float("inf"):
            return _whole(nn.utils.clip_grad_norm_(self._distinct(), max_norm, norm_type))
        shards = [parameter.grad.to_local() for parameter in self._distinct() if parameter.grad is not None]
        largest = [shard.abs().max() for shard in shards if shard.numel()]
        like = shards[0] if shards else next(iter(self.sharded.values())).to_local()
        norm = torch.stack(largest).max() if largest else like.new_zeros(())
        dist.all_reduce(norm, dist.ReduceOp.MAX)
        for shard in shards:
            shard *= torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return norm

    def unscale_(self, scale: float) -> bool:
        """Divides each shard, and asks all ranks whether what they hold is finite."""
        finite = torch.ones((), device=next(self.module.parameters()).device)
        for parameter in self._distinct():
            if parameter.grad is not None:
                shard = parameter.grad.to_local()
                shard /= scale
                finite *= shard.isfinite().all()
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        return bool(finite)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops every shard's gradient, or sets it to zero."""
        for parameter in self._distinct():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def _distinct(self) -> list[nn.Parameter]:
        return list(dict.fromkeys(self.sharded.values()))

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter, gathered."""
        return {name: _whole(parameter).detach() for name, parameter in self.sharded.items()}

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        """Every gradient, gathered; all ranks have one or none has."""
        return {
            name: None if parameter.grad is None else _whole(parameter.grad) for name, parameter in self.sharded.items()
        }

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The optimizer state of every parameter, gathered; a step count is whole on every rank."""
        held = {parameter: state for each in self.optimizers for parameter, state in each.state.items()}
        return {
            name: {key: _whole(value) for key, value in held.get(parameter, {}).items()}
            for name, parameter in self.sharded.items()
        }

    @torch.no_grad()
    def load_full(
        self, parameters: Mapping[str, torch.Tensor], optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None
    ) -> None:
        """Cuts whole tensors anew, as many ranks as there may be."""
        for name, values in parameters.items():
            self.sharded[name].copy_(_like(self.sharded[name], values))
        told = {self.sharded[name]: state for name, state in (optimizer_state or {}).items() if state}
        for optimizer in self.optimizers:
            optimizer.state.clear()
            for parameter in (each for group in optimizer.param_groups for each in group["params"] if each in told):
                optimizer.state[parameter] = {
                    key: value.clone() if key == "step" else _like(parameter, value)
                    for key, value in told[parameter].items()
                }


class FSDP2KeepsParameters(FSDP2):
    """Parameters stay gathered from forward to backward: those of a ZeRO-3 that gathers once."""

    options = {"reshard_after_forward": False}


class FSDP2ReducesInDouble(FSDP2):
    """With a mixed-precision policy: gradients are summed in float64, whatever the parameter's dtype."""

    # torch 2.13: inside no_sync a unit that forward does not call ends in an AttributeError (docs/findings).
    claims = {**FSDP2.claims, "reduce_dtype": "float64", "accumulation": False}
    options = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float64)}


class FSDP2Compressed(FSDP2):
    """With a policy of mixed precision: parameters as they are, gradients summed in bfloat16."""

    claims = {**FSDP2.claims, "wire_dtype": "bfloat16", "accumulation": False}  # as above
    options = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}


class FSDP2ReducesShards(FSDP2):
    """Accumulates with `set_requires_all_reduce`: "only reduce-scatter but not all-reduce for HSDP"."""

    # torch 2.13: if micro-batches of a window use different parameters of a unit, gradients are mixed (docs/findings).
    claims = {**FSDP2.claims, "silent_no_sync": False}

    def _set_sync(self, synchronizes: bool) -> None:
        self._synchronizes = synchronizes
        self.module.set_requires_all_reduce(synchronizes)


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _like(parameter: Any, values: torch.Tensor) -> DTensor:
    """The same tensor is on every rank: nothing has to be sent to cut it."""
    return distribute_tensor(values, parameter.device_mesh, parameter.placements, src_data_rank=None)
