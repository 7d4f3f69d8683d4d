"""Checks on a machine with GPUs, in one call: `python -m lockstep.worlds.tests.on_gpus`.

gloo with CUDA tensors, several ranks on one GPU; NCCL with one GPU per rank; NCCL with two ranks per GPU. Collectives,
messages, and a group of gloo's beside NCCL's; then, where there are several ranks, whatever one of them can do wrong,
which must be told as what it is and leave a sound world. Prints a line for each and ends with status 1 if one fails or
if there is no GPU.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np

from lockstep.worlds import devices, pool
from lockstep.worlds.contract import Job, World
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.nccl import NcclWorld
from lockstep.worlds.tests.faults import FAULTS, complaints

LIMIT = 3.0  # seconds for an example in which a rank hangs, once the pool is up
PATIENCE = 1.0
GIB = 12  # of the CPU's memory that a rank may hold, CUDA's own among it


def sums(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """All-reduces, gathers and scatters tensors on this rank's device."""
    import torch
    import torch.distributed as dist

    mine = torch.arange(1.0, 2 * world_size + 1, device=devices.place()) + 100 * rank
    reduced, gathered = mine.clone(), mine.new_zeros(len(mine) * world_size)
    scattered = mine.new_zeros(2)
    dist.all_reduce(reduced)
    dist.all_gather_into_tensor(gathered, mine)
    dist.reduce_scatter_tensor(scattered, mine)
    dist.barrier()
    values = {"reduced": reduced, "gathered": gathered, "scattered": scattered}
    return {"device": str(mine.device), **{name: value.cpu().numpy() for name, value in values.items()}}


def messages(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Sends round what is on this rank's device, and adds up what is on the CPU in a group of gloo's."""
    import torch
    import torch.distributed as dist

    on_cpu = torch.tensor([float(rank)])
    dist.all_reduce(on_cpu, group=dist.new_group(backend="gloo"))
    mine = torch.full((4,), float(rank), device=devices.place())
    received, refused = torch.full_like(mine, -1), ""
    before, behind = (rank - 1) % world_size, (rank + 1) % world_size
    try:
        both = [dist.P2POp(dist.isend, mine, behind), dist.P2POp(dist.irecv, received, before)]
        for work in dist.batch_isend_irecv(both) if world_size > 1 else ():
            work.wait()
    except NotImplementedError as error:
        refused = str(error)
    return {"received": received.tolist(), "refused": refused, "on the cpu": on_cpu.tolist()}


def check(world: World, size: int) -> str:
    """Runs `sums` twice, the second time on warm processes, and `messages`; what is wrong, or nothing."""
    inputs = np.array([np.arange(1.0, 2 * size + 1) + 100 * rank for rank in range(size)], dtype=np.float32)
    for _ in range(2):
        for rank, report in enumerate(world.run(Job("lockstep.worlds.tests.on_gpus:sums", json.dumps(None), size))):
            if report.error is not None or report.result is None:
                return f"rank {rank}: {report.error}"
            if not report.result["device"].startswith("cuda"):
                return f"rank {rank} has its tensors on {report.result['device']}"
            total = inputs.sum(0)
            wanted = {"reduced": total, "gathered": inputs.ravel(), "scattered": np.split(total, size)[rank]}
            for name, value in wanted.items():
                if not np.array_equal(report.result[name], value):
                    return f"rank {rank}: {name} is {report.result[name]}, and must be {value}"
    refused = "gloo has no messages of CUDA tensors" if world.name == "gloo" and size > 1 else ""
    for rank, report in enumerate(world.run(Job("lockstep.worlds.tests.on_gpus:messages", json.dumps(None), size))):
        if report.error is not None or report.result is None:
            return f"rank {rank}, messages: {report.error}"
        value = float((rank - 1) % size) if size > 1 and not refused else -1.0
        sent = {"received": [value] * 4, "on the cpu": [sum(range(size))]}
        if refused not in (said := report.result["refused"]) or bool(said) != bool(refused):
            return f"rank {rank}, messages: {said or 'nothing'} is said where it must be {refused or 'nothing'}"
        if (got := {name: report.result[name] for name in sent}) != sent:
            return f"rank {rank}, messages: {got}, and must be {sent}"
    return ""


def contained(world: World, size: int) -> Iterator[str]:
    """What is wrong with how each fault of one rank is told, and with the example after it; a line for each."""
    for name, fault in FAULTS.items():
        payload = json.dumps({"fault": name, "rank": size - 1})
        limit = LIMIT if fault.kind == "timeout" else None
        with mock.patch.object(pool, "PATIENCE", pool.PATIENCE if fault.kind is None else PATIENCE):
            outcome = world.run(Job("lockstep.worlds.tests.faults:with_a_fault", payload, size, limit=limit))
        after = world.run(Job("lockstep.worlds.tests.faults:with_a_fault", "null", size))
        yield from complaints(outcome, name, size - 1, GIB)
        yield from (f"after {name}: {complaint}" for complaint in complaints(after, None, 0))


def main() -> int:
    """Tries gloo and NCCL on the GPUs of this machine: a line for each; status 1 if one fails or there is no GPU."""
    argparse.ArgumentParser(prog="python -m lockstep.worlds.tests.on_gpus", description=main.__doc__).parse_args()
    machine = devices.look()
    gpus = len(machine["gpus"])
    print(f"torch {machine['version']}, NCCL {machine['nccl'] or 'missing'}, GPUs: {machine['gpus'] or 'none'}")
    if not gpus:
        return 1
    cases: dict[str, tuple[Callable[[], World], int]] = {
        "gloo, CUDA tensors, two ranks per GPU": (lambda: GlooWorld(device="cuda", memory=GIB << 30), 2 * gpus),
        "nccl, one rank per GPU": (lambda: NcclWorld(gpus), gpus),
        "nccl, two ranks per GPU": (lambda: NcclWorld(gpus, ranks_per_gpu=2, memory=GIB << 30), 2 * gpus),
    }
    failed = False
    for name, (make, size) in cases.items():
        world = make()
        try:
            wrong = check(world, size)
            print(f"{name}, {size} ranks: {wrong or 'right'}", flush=True)
            found = list(contained(world, size)) if size > 1 and not wrong else []
        finally:
            world.close()
        for complaint in found:
            print(f"  {complaint}", flush=True)
        failed = failed or bool(wrong or found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
