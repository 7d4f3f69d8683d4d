"""FSDP2: a divide factor counts twice on a mesh of one rank

Framework: torch 2.13, fully_shard

Law: P21

Program: Parameters in float64, each on a mesh of its own rank, as experts with one rank each are. The factor is the
number of ranks, 2. Each rank's gradient is 1.

Why: Where the mesh has one rank, the gradient is copied and divided by the factor. In float16 and float64, or with
`set_force_sum_reduction_for_comms(True)`, it is also divided before and after that, as for a sum. In float32 and
bfloat16 it is divided once. The `replicate` that is made of FSDP2 counts it twice on any number of ranks.

Documented: no

Reports: none known
"""

import multiprocessing
import os
import queue
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MUST = ("[[0.5]]", "[[0.5]]")  # by rank
IS = ("[[0.25]]", "[[0.25]]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "expert"))["data"]
    expert = fully_shard(nn.Linear(1, 1, bias=False, dtype=torch.float64), mesh=mesh)
    expert.set_gradient_divide_factor(2.0)
    expert(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
    return expert.weight.grad.full_tensor().tolist()


# The same in every finding. Exit code 1: the fault is there; 0: it is not; 2: something else is wrong.
def on_rank(rank, store, out):
    """Print what a rank must give and what it gives, and send it to the parent."""
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=len(MUST))
    warnings.simplefilter("ignore")
    try:
        given, wait = str(finding(rank)), LIMIT
    except Exception as error:
        given, wait = f"{type(error).__name__}: {error}".splitlines()[0], 0
    print(f"rank {rank}: must be {MUST[rank]}; is {given}", flush=True)
    out.put((rank, given))
    time.sleep(2 * wait or 0.1)  # a rank that is done stays, and one that fails goes
    os._exit(0)


def main():
    """Run the program on gloo processes, and compare."""
    context, given = multiprocessing.get_context("fork"), {}
    with tempfile.TemporaryDirectory() as folder:
        out = context.Queue()
        ranks = [context.Process(target=on_rank, args=(rank, f"{folder}/store", out)) for rank in range(len(MUST))]
        for process in ranks:
            process.start()
        ended = time.monotonic() + LIMIT
        while len(given) < len(ranks) and time.monotonic() < ended:
            try:
                rank, words = out.get(timeout=0.2)
                given[rank] = words
            except queue.Empty:
                dead = [rank for rank, process in enumerate(ranks) if process.exitcode and rank not in given]
                given |= dict.fromkeys(dead, "nothing: its process died")
        for rank, process in enumerate(ranks):
            given.setdefault(rank, "nothing: it waits for ever")
            process.kill()
            process.join()
    if all(given[rank] == MUST[rank] for rank in given):
        print("The fault is not there.")
        return 0
    as_told = all(given[rank].startswith(IS[rank]) for rank in given)
    print("The fault is there." if as_told else f"Something else is wrong: it was {IS} when this was written.")
    return 1 if as_told else 2


if __name__ == "__main__":
    sys.exit(main())
