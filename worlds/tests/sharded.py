"""DTensor, functional collectives, checkpoints and pipelines, unmodified, on every rank."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as autograd_collectives
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lockstep.worlds.tests.wrappers import model, state, train

Result = Mapping[str, Any]


def redistributions(payload: str, rank: int, world_size: int) -> Result:
    """Every pair of placements, on a length that the ranks cannot share evenly; what this rank then holds."""
    mesh = init_device_mesh("cpu", (world_size,))
    values = torch.arange(1.0, 1 + 5 * 7).reshape(5, 7)
    held = {}
    for source in (Replicate(), Shard(0), Shard(1)):
        for target in (Replicate(), Shard(0), Shard(1)):
            there = distribute_tensor(values, mesh, [source]).redistribute(mesh, [target])
            held[f"{source} to {target}"] = there.to_local().double().numpy()
    for reduction in ("sum", "avg", "max", "min", "product"):
        for target in (Replicate(), Shard(0), Shard(1)):
            there = DTensor.from_local(values + rank, mesh, [Partial(reduction)]).redistribute(mesh, [target])
            held[f"{reduction} to {target}"] = there.to_local().double().numpy()
    return held


def two_dimensions(payload: str, rank: int, world_size: int) -> Result:
    """A mesh of two dimensions, sharded by both."""
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("rows", "columns"))
    values = torch.arange(1.0, 1 + 6 * 5).reshape(6, 5)
    both = distribute_tensor(values, mesh, [Shard(0), Shard(1)])
    product = both @ distribute_tensor(values.t().contiguous(), mesh, [Replicate(), Replicate()])
    return {
        "local": both.to_local().double().numpy(),
        "moved": both.redistribute(mesh, [Shard(1), Replicate()]).to_local().double().numpy(),
        "product": product.full_tensor().double().numpy(),
    }


def tensor_parallel(payload: str, rank: int, world_size: int) -> Result:
    """A model cut by columns and rows; every rank has the same batch, whose sums are of whole numbers."""
    mesh = init_device_mesh("cpu", (world_size,))
    whole = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    for number, parameter in enumerate(whole.parameters()):
        parameter.data = torch.arange(parameter.numel()).reshape(parameter.shape).double() % 5 - number
    cut = parallelize_module(whole, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    values = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    output = cut(values)
    output.sum().backward()
    gradients = {name: each.grad.full_tensor().numpy() for name, each in cut.named_parameters()}
    return {"output": output.detach().numpy(), **gradients}


def functional(payload: str, rank: int, world_size: int) -> Result:
    """Each functional collective, by the names that torch 2.11 to 2.14 share."""
    world = dist.group.WORLD
    values = torch.arange(1.0, 1 + 2 * world_size).reshape(world_size * 2, 1) + 10 * rank
    given = {
        "all_reduce": funcol.all_reduce(values, "sum", world),
        "average": funcol.all_reduce(values, "avg", world),
        "broadcast": funcol.broadcast(values, world_size - 1, world),
        "all_gather": funcol.all_gather_tensor(values, 0, world),
        "all_gather of columns": funcol.all_gather_tensor(values, 1, world),
        "reduce_scatter": funcol.reduce_scatter_tensor(values, "sum", 0, world),
        "all_to_all": funcol.all_to_all_single(values, None, None, world),
        "permute": funcol.permute_tensor(values, [(each + 1) % world_size for each in range(world_size)], world),
    }
    coalesced = {
        "all_reduce": funcol.all_reduce_coalesced([values, values + 1], "max", world),
        "all_gather": funcol.all_gather_into_tensor_coalesced([values, values.double() + 1], world),
        "reduce_scatter": funcol.reduce_scatter_tensor_coalesced([values, values + 1], "sum", [0, 0], world),
    }
    for name, each in coalesced.items():
        given |= {f"{name} {number}": tensor for number, tensor in enumerate(each)}
    return {name: funcol.wait_tensor(tensor).double().numpy() for name, tensor in given.items()}


def with_gradients(payload: str, rank: int, world_size: int) -> Result:
    """The collectives that autograd goes through."""
    values = (torch.arange(1.0, 1 + 2 * world_size) + 10 * rank).requires_grad_()
    summed = autograd_collectives.all_reduce(values * 1)
    gathered = torch.cat(autograd_collectives.all_gather(values[:2] * (rank + 1)))
    output = torch.empty(2)
    scattered = autograd_collectives.reduce_scatter(output, list((values * 3).chunk(world_size)))
    moved = funcol.all_to_all_single_autograd(values * 5, None, None, dist.group.WORLD)
    (summed.sum() + gathered.square().sum() + (scattered * (rank + 1)).sum() + moved.square().sum()).backward()
    assert values.grad is not None
    return {"gradient": values.grad.numpy(), "moved": moved.detach().numpy()}


def checkpoint(payload: str, rank: int, world_size: int) -> Result:
    """Trains, saves, trains on, loads into a fresh model, trains on: both must be at the same point.

    ``payload``: how to save, and the folder.
    """
    how, folder = json.loads(payload)
    mesh = init_device_mesh("cpu", (world_size,))
    first, second = (fully_shard(model(), mesh=mesh) for _ in range(2))
    saved, loaded = (torch.optim.Adam(each.parameters(), lr=0.1) for each in (first, second))
    train(first, rank, saved)
    parameters, optimizer = get_state_dict(first, saved)
    if how == "asynchronously":
        dcp.async_save({"model": parameters, "optimizer": optimizer}, checkpoint_id=folder).result()
    else:
        dcp.save({"model": parameters, "optimizer": optimizer}, checkpoint_id=folder)
    files = sorted(path.name for path in Path(folder).iterdir()) if rank == 0 else []
    parameters, optimizer = get_state_dict(second, loaded)
    dcp.load({"model": parameters, "optimizer": optimizer}, checkpoint_id=folder)
    set_state_dict(second, loaded, model_state_dict=parameters, optim_state_dict=optimizer)
    before = state(second)
    assert all((before[name] == each).all() for name, each in state(first).items())
    train(first, rank, saved, steps=2)
    train(second, rank, loaded, steps=2)
    return {"files": files, "before": before, "first": state(first), "second": state(second)}


def objects(payload: str, rank: int, world_size: int) -> Result:
    """Every object collective, to and from the last rank."""
    last, mine = world_size - 1, {"rank": rank, "values": [rank] * rank}
    everyone, at_last, from_last, one = [None] * world_size, [None] * world_size, [mine, rank], [None]
    dist.all_gather_object(everyone, mine)
    dist.gather_object(mine, at_last if rank == last else None, dst=last)
    dist.broadcast_object_list(from_last, src=last)
    dist.scatter_object_list(one, [f"for {each}" for each in range(world_size)] if rank == last else None, src=last)
    if rank == 0:
        dist.send_object_list([mine, "hello"], dst=last)
    received: list[Any] = [None, None]
    if rank == last and last > 0:
        dist.recv_object_list(received, src=0)
    return {"all": everyone, "at last": at_last, "from last": from_last, "one": one, "received": received}


def pipeline(payload: str, rank: int, world_size: int) -> Result:
    """Two steps of four micro-batches through a schedule of torch's, with stages that it sends messages between."""
    kind, device = get_schedule_class(json.loads(payload)), torch.device("cpu")
    each = 2 if issubclass(kind, PipelineScheduleMulti) else 1
    numbers = range(rank, each * world_size, world_size)
    stages = [PipelineStage(_whole_numbers(number), number, each * world_size, device) for number in numbers]
    schedule = kind(stages if each > 1 else stages[0], 4, loss_fn=lambda output, target: (output - target).sum())
    batch, losses = torch.arange(32.0).reshape(8, 4) % 5, list[torch.Tensor]()
    for _ in range(2):
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(**({"target": batch, "losses": losses} if rank == world_size - 1 else {}))
    gradients = [parameter.grad for stage in stages for parameter in stage.submod.parameters()]
    return {"losses": [loss.item() for loss in losses], "gradients": [grad.numpy() for grad in gradients]}


def _whole_numbers(number: int) -> nn.Linear:
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.arange(parameter.numel()).add(number).remainder(3).view_as(parameter))
    return layer
