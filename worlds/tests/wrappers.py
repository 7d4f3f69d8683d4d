"""torch's own data-parallel wrappers, unmodified: each function trains a small model for a few steps on every rank.

Every parameter and buffer at the end is given back. Data are random numbers of the rank's own: with two ranks (and in
groups of two) every sum has two terms, so that any two backends must give the same bits.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

Result = Mapping[str, Any]
STEPS, LR = 3, 0.125


class Branches(nn.Module):
    """On each rank another of three layers is left out; batch norm has buffers."""

    def __init__(self, uses: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.norm, self.uses = nn.BatchNorm1d(3), uses

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number != self.uses:
                values = layer(values)
        return self.norm(values)


def model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def batches(rank: int, steps: int = STEPS) -> Iterator[torch.Tensor]:
    source = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        yield torch.randn(4, 3, generator=source)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def state(module: nn.Module) -> dict[str, Any]:
    return {name: whole(tensor).detach().double().numpy() for name, tensor in module.state_dict().items()}


def train(wrapped: nn.Module, rank: int, optimizer: Any = None, steps: int = STEPS) -> None:
    optimizer = optimizer or torch.optim.SGD(wrapped.parameters(), lr=LR, momentum=0.5)
    for values in batches(rank, steps):
        optimizer.zero_grad()
        wrapped(values).square().mean().backward()
        optimizer.step()


HOOKS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "allreduce": lambda: (None, default_hooks.allreduce_hook),
    "fp16": lambda: (None, default_hooks.fp16_compress_hook),
    "bf16": lambda: (None, default_hooks.bf16_compress_hook),
    "fp16 around allreduce": lambda: (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    "PowerSGD": lambda: (
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1),
        powerSGD_hook.powerSGD_hook,
    ),
    "batched PowerSGD": lambda: (
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2),
        powerSGD_hook.batched_powerSGD_hook,
    ),
    "quantization per tensor": lambda: (dist.group.WORLD, quantization_hooks.quantization_pertensor_hook),
    "quantization per channel": lambda: (dist.group.WORLD, quantization_hooks.quantization_perchannel_hook),
    "noop": lambda: (None, debugging_hooks.noop_hook),
}


def ddp(payload: str, rank: int, world_size: int) -> Result:
    """Payload: options of DDP."""
    wrapped = DistributedDataParallel(model(), **json.loads(payload))
    train(wrapped, rank)
    return state(wrapped)


def ddp_compiled(payload: str, rank: int, world_size: int) -> Result:
    """From its second iteration on torch calls the group while it is compiling."""
    wrapped = DistributedDataParallel(model())
    train(torch.compile(wrapped, backend="eager"), rank)
    return state(wrapped)


def ddp_mesh(payload: str, rank: int, world_size: int) -> Result:
    """Over the columns of a mesh: the other rank of a row has other data and trains another model."""
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicas", "models"))
    wrapped = DistributedDataParallel(model(), device_mesh=mesh["replicas"])
    train(wrapped, rank)
    return state(wrapped)


def ddp_mixed_precision(payload: str, rank: int, world_size: int) -> Result:
    wrapped = DistributedDataParallel(model(), mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))
    train(wrapped, rank)
    return state(wrapped)


def ddp_delayed(payload: str, rank: int, world_size: int) -> Result:
    """The last layer's gradients are reduced at the end of backward, all at once."""
    module = model()
    delayed = [(name, each) for name, each in module.named_parameters() if name.startswith("4.")]
    first = module[0].weight  # the last that backward comes to
    wrapped = DistributedDataParallel(
        module, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=first, static_graph=False
    )
    train(wrapped, rank)
    return state(wrapped)


def ddp_hook(payload: str, rank: int, world_size: int) -> Result:
    """Payload: one of HOOKS."""
    wrapped = DistributedDataParallel(model())
    wrapped.register_comm_hook(*HOOKS[json.loads(payload)]())
    train(wrapped, rank)
    return state(wrapped)


def ddp_builtin_hook(payload: str, rank: int, world_size: int) -> Result:
    """Payload: one of the hooks in C++."""
    wrapped = DistributedDataParallel(model())
    wrapped._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, json.loads(payload)))
    train(wrapped, rank)
    return state(wrapped)


def ddp_post_local_sgd(payload: str, rank: int, world_size: int) -> Result:
    wrapped = DistributedDataParallel(model())
    group = dist.new_group(list(range(world_size)))
    hook_state = post_localSGD_hook.PostLocalSGDState(None, group, start_localSGD_iter=1)
    wrapped.register_comm_hook(hook_state, post_localSGD_hook.post_localSGD_hook)
    inner = torch.optim.SGD(wrapped.parameters(), lr=LR)
    train(wrapped, rank, PostLocalSGDOptimizer(inner, averagers.PeriodicModelAverager(period=2, warmup_steps=1)))
    return state(wrapped)


def ddp_unused_parameters(payload: str, rank: int, world_size: int) -> Result:
    torch.manual_seed(5)
    wrapped = DistributedDataParallel(
        Branches(rank), find_unused_parameters=True, broadcast_buffers=json.loads(payload)
    )
    train(wrapped, rank)
    return state(wrapped)


def ddp_no_sync(payload: str, rank: int, world_size: int) -> Result:
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
    for number, values in enumerate(batches(rank, 4)):
        if number % 2:
            wrapped(values).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with wrapped.no_sync():
                wrapped(values).square().mean().backward()
    return state(wrapped)


def ddp_join(payload: str, rank: int, world_size: int) -> Result:
    """Rank r has r + 1 batches."""
    wrapped = DistributedDataParallel(model())
    with wrapped.join():
        train(wrapped, rank, steps=rank + 1)
    return state(wrapped)


def ddp_and_zero_join(payload: str, rank: int, world_size: int) -> Result:
    wrapped = DistributedDataParallel(model(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.1)
    with Join([wrapped, optimizer]):
        train(wrapped, rank, optimizer, steps=rank + 1)
    return state(wrapped)


def ddp_sync_batch_norm(payload: str, rank: int, world_size: int) -> Result:
    torch.manual_seed(5)
    wrapped = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(Branches(-1)))
    train(wrapped, rank)
    return state(wrapped)


def zero(payload: str, rank: int, world_size: int) -> Result:
    """Payload: options of ZeroRedundancyOptimizer."""
    wrapped = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.1, **json.loads(payload))
    train(wrapped, rank, optimizer)
    optimizer.consolidate_state_dict(to=0)
    moments = optimizer.state_dict()["state"] if rank == 0 else {}
    kept = {f"moment of {number}": each["exp_avg"].double().numpy() for number, each in moments.items()}
    return {**state(wrapped), **kept}


def zero_overlapped(payload: str, rank: int, world_size: int) -> Result:
    """ZeRO's step inside DDP's hook, which torch refuses on gloo."""
    wrapped = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=LR)
    hook = ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, wrapped, optimizer)
    wrapped.register_comm_hook(None, hook)
    train(wrapped, rank, optimizer)
    return state(wrapped)


# Options of FSDP1. HYBRID_SHARD takes replicas of shards, so a square of ranks.
FSDP1_OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "HYBRID_SHARD": lambda: {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "device_mesh": _square()},
    "_HYBRID_SHARD_ZERO2": lambda: {
        "sharding_strategy": ShardingStrategy._HYBRID_SHARD_ZERO2,
        "device_mesh": _square(),
    },
    "BACKWARD_POST": lambda: {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
    "without backward_prefetch": lambda: {"backward_prefetch": None},
    "forward_prefetch": lambda: {"forward_prefetch": True},
    "without limit_all_gathers": lambda: {"limit_all_gathers": False},
    "MixedPrecision": lambda: {
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    },
    "CPUOffload": lambda: {"cpu_offload": CPUOffload(offload_params=True)},
}


def _square() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))


def fsdp1(payload: str, rank: int, world_size: int) -> Result:
    """Payload: the sharding strategy, and whether torch's own parameters are kept."""
    strategy, original = json.loads(payload)
    return _fsdp1(rank, sharding_strategy=ShardingStrategy[strategy], use_orig_params=original)


def fsdp1_option(payload: str, rank: int, world_size: int) -> Result:
    """Payload: one of FSDP1_OPTIONS."""
    return _fsdp1(rank, use_orig_params=True, **FSDP1_OPTIONS[json.loads(payload)]())


def _fsdp1(rank: int, **options: Any) -> Result:
    wrapped: Any = model()
    for number in (0, 2):
        wrapped[number] = FullyShardedDataParallel(wrapped[number], device_id=torch.device("cpu"), **options)
    wrapped = FullyShardedDataParallel(wrapped, device_id=torch.device("cpu"), **options)
    train(wrapped, rank)
    wrapped.clip_grad_norm_(0.5)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return {name: each.detach().double().numpy().copy() for name, each in wrapped.named_parameters()}


def fsdp2(payload: str, rank: int, world_size: int) -> Result:
    """Payload: the mesh, and options of fully_shard."""
    shape, options = json.loads(payload)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    if options.pop("low precision", False):
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrapped = model()
    for number in (0, 2):
        fully_shard(wrapped[number], mesh=mesh, **options)
    fully_shard(wrapped, mesh=mesh, **options)
    train(wrapped, rank)
    norm = torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
    return {**state(wrapped), "norm": whole(norm).double().numpy()}


def four_wrappers(payload: str, rank: int, world_size: int) -> Result:
    """Payload: a wrapper. Whole numbers in float64, so that four terms add up alike in any order."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    for number, parameter in enumerate(module.parameters()):
        parameter.data = (torch.arange(parameter.numel()).reshape(parameter.shape).double() + number) % 5 - 2
    wrapped: Any
    match json.loads(payload):
        case "DDP" | "ZeRO":
            wrapped = DistributedDataParallel(module, bucket_cap_mb=0.00001)
        case "FSDP1":
            wrapped = FullyShardedDataParallel(module, use_orig_params=True, device_id=torch.device("cpu"))
        case "FSDP2":
            wrapped = fully_shard(module, mesh=init_device_mesh("cpu", (world_size,)))
    if json.loads(payload) == "ZeRO":
        optimizer: Any = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=LR)
    else:
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR)
    for step in range(2):
        optimizer.zero_grad()
        values = (torch.arange(6.0).reshape(2, 3).double() + rank + step) % 4
        wrapped(values).sum().backward()
        optimizer.step()
    if isinstance(wrapped, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(wrapped):
            return {name: each.detach().clone().numpy() for name, each in wrapped.named_parameters()}
    return state(wrapped)
