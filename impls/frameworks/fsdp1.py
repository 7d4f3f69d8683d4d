"""torch's FSDP1, `FullyShardedDataParallel`, around the whole module, with the parameters kept as they are.

It flattens all parameters into one and cuts that into equal parts, so that a rank may own the end of one parameter and
the start of the next. It divides before and after the sum; gradients are final when backward returns.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp._debug_utils import SimpleProfiler

from lockstep.impls.wrapper import broadcast_from_rank_zero, torch_groups

_WRAPPER = "_fsdp_wrapped_module."


class _OfManyRanks(set[str]):
    """FSDP1's set of running timers: one per process, which raises if simulated ranks share it."""

    def __contains__(self, name: object) -> bool:
        return False

    remove = set.discard


SimpleProfiler.profiling = _OfManyRanks()


class FSDP1(nn.Module):
    """FULL_SHARD. Every rank uses the same parameters.

    Not claimed: forwards without a backward, after which the root keeps its gathered parameters; and windows dropped
    halfway, after which old averages come back (docs/findings).
    """

    claims: dict[str, Any] = {
        "hook_order": False,
        "accumulation": True,
        "drops_windows": False,
        "several_forwards": True,
        "leaves_random_numbers": True,
        "in_place": False,  # of views (docs/findings)
        "outside_reads": True,
        "evaluates": False,
        "stage": 3,
        "same_bits": True,
        "reloads": True,
        "scalars": False,
        "schedule": "gather once",
        "cost": True,
        "other_models": True,
    }
    strategy = ShardingStrategy.FULL_SHARD
    options: dict[str, Any] = {}

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        device = next(module.parameters()).device
        self.dtypes = {parameter.dtype for parameter in module.parameters()}
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        options = {"sharding_strategy": self.strategy, "use_orig_params": True, "device_id": device}
        options |= {**self.options, **self.placed(device)}
        broadcast_from_rank_zero(module)  # sync_module_states is refused on a CPU
        self.module = FullyShardedDataParallel(module, **options)

    def placed(self, device: torch.device) -> dict[str, Any]:
        """The arguments that tell which ranks share parameters."""
        return {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients accumulate inside, whole and without being reduced."""
        with self.module.no_sync():
            yield

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> torch.optim.Optimizer:
        """An optimizer of the parts that this rank owns."""
        parts = {name.replace(_WRAPPER, ""): part for name, part in self.module.named_parameters()}
        self.optimizer = kind(torch_groups(groups, parts), **defaults)
        return self.optimizer

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip with FSDP's own function; torch's would take this rank's parts for the whole.

        FSDP's fails in float64, and writes the largest norm into the zero of a rank without gradients (docs/findings).
        """
        parts = [part.grad for part in self.module.parameters() if part.grad is not None]
        mine = [part for part in parts if part.numel()]
        if self.strategy is ShardingStrategy.NO_SHARD or next(iter(self.dtypes)) is not torch.float64:
            norm = self.module.clip_grad_norm_(max_norm, norm_type).clone()
            self.module._zero_scalar.zero_()
            return norm
        nothing = torch.zeros((), dtype=torch.float64, device=next(self.module.parameters()).device)
        norms = torch.stack([torch.linalg.vector_norm(part, norm_type) for part in mine] or [nothing])
        largest = norm_type == float("inf")
        norm = norms.max() if largest else (norms**norm_type).sum()
        dist.all_reduce(norm, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, self.module.process_group)
        norm = norm if largest else norm ** (1 / norm_type)
        for part in mine:
            part *= torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return norm

    def unscale_(self, scale: float) -> bool:
        """Divides each part, and asks all ranks whether what they hold is finite."""
        finite = torch.ones((), device=next(self.module.parameters()).device)
        for part in self.module.parameters():
            if part.grad is not None:
                part.grad /= scale
                finite *= part.grad.isfinite().all()
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        return bool(finite)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients as of any module."""
        self.module.zero_grad(set_to_none)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter, gathered."""
        with FullyShardedDataParallel.summon_full_params(self.module):
            return {_name(name): whole.detach().clone() for name, whole in self.module.named_parameters()}

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        """Every gradient, gathered: the parts of one parameter follow one another as the ranks do.

        Not by ``summon_full_params(with_grads=True)``: where a rank owns none of a float64 unit, that gathers float32.
        """
        mine = {_name(name): part.grad for name, part in self.module.named_parameters()}
        if self.strategy is ShardingStrategy.NO_SHARD:
            return mine
        shares: list[Any] = [None] * dist.get_world_size(self.module.process_group)
        dist.all_gather_object(shares, mine, self.module.process_group)
        found: dict[str, torch.Tensor | None] = {}
        for name, shape in self.shapes.items():
            parts = [share[name].flatten() for share in shares if share[name] is not None]
            found[name] = torch.cat(parts).reshape(shape) if parts else None
        return found

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The optimizer state of every parameter, gathered."""
        with self._whole_states():
            return dict(FullyShardedDataParallel.optim_state_dict(self.module, self.optimizer)["state"])

    @torch.no_grad()
    def load_full(
        self, parameters: Mapping[str, torch.Tensor], optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None
    ) -> None:
        """Cuts whole tensors anew, as many ranks as there may be."""
        with FullyShardedDataParallel.summon_full_params(self.module):
            for name, whole in self.module.named_parameters():
                whole.copy_(parameters[_name(name)])
        with self._whole_states():
            held = FullyShardedDataParallel.optim_state_dict(self.module, self.optimizer)
            state = {"state": {name: dict(values) for name, values in (optimizer_state or {}).items() if values}}
            cut = FullyShardedDataParallel.optim_state_dict_to_load(
                self.module, self.optimizer, {**state, "param_groups": held["param_groups"]}
            )
        self.optimizer.load_state_dict(cut)

    def _whole_states(self) -> Any:
        # With offload_to_cpu, the default, all states of a parameter become the last of them where it is on a CPU.
        return FullyShardedDataParallel.state_dict_type(
            self.module,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(rank0_only=False),
            FullOptimStateDictConfig(rank0_only=False, offload_to_cpu=False),
        )


class FSDP1ShardsGradients(FSDP1):
    """SHARD_GRAD_OP: parameters stay gathered from forward to backward, and inside `no_sync` to the next forward."""

    # Between forward and backward its module's zero_grad sees none of the gradients (docs/findings).
    claims = {**FSDP1.claims, "schedule": "keep in no_sync", "zeroes_late": False}
    strategy = ShardingStrategy.SHARD_GRAD_OP


class FSDP1ShardsNothing(FSDP1):
    """NO_SHARD: flat parameters, whole on every rank; gradients are all-reduced."""

    claims = {
        **FSDP1.claims,
        "stage": 0,
        "schedule": None,
        "evaluates": True,
        "drops_losses": True,
        "drops_windows": True,
        "cost": False,  # what is frozen is reduced with what it lies end to end with (docs/findings)
    }
    strategy = ShardingStrategy.NO_SHARD


class FSDP1Hybrid(FSDP1):
    """HYBRID_SHARD: sharded among neighbors, replicated across such groups; of at least two ranks each, for else torch
    reduces nothing (docs/findings).
    """

    claims = {**FSDP1.claims, "replicas": True, "schedule": None}  # an all-reduce among replicas comes on top
    strategy = ShardingStrategy.HYBRID_SHARD

    def __init__(self, module: nn.Module, replicas: int = 1) -> None:
        if replicas == dist.get_world_size() > 1:
            raise ValueError(f"{replicas} replicas of one rank: HYBRID_SHARD averages only if more ranks share one")
        self.replicas = replicas
        super().__init__(module)

    def placed(self, device: torch.device) -> dict[str, Any]:
        """A mesh of replicas and shards."""
        shape = (self.replicas, dist.get_world_size() // self.replicas)
        return {"device_mesh": init_device_mesh(device.type, shape, mesh_dim_names=("replicas", "shards"))}


class FSDP1Compressed(FSDP1):
    """With mixed precision in reductions alone: gradients are summed in bfloat16, and accumulate in their own dtype."""

    claims = {**FSDP1.claims, "wire_dtype": "bfloat16"}
    options = {"mixed_precision": MixedPrecision(reduce_dtype=torch.bfloat16)}


def _name(wrapped: str) -> str:
    return wrapped.replace(_WRAPPER, "")
