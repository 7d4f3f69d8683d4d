"""FSDP2: `set_requires_all_reduce` mixes the gradients of different parameters

Framework: torch 2.11 to 2.14, fully_shard on a mesh of replicas and shards

Law: P3

Program: A unit of two layers accumulates over two micro-batches, of which the first does not all-reduce. The first
micro-batch uses layer a, the second layer b.

Why: Until the all-reduce, a unit keeps one flat sum of what it has reduce-scattered (`partial_reduce_output`). Each
backward adds a buffer of those parameters that have a gradient in it, and nothing says which these are. Where sizes
agree, the gradient of one parameter is added to another's. Where they differ, it ends in an error. A unit that the
last micro-batch does not use keeps its sum until the next window.

Documented: no: it "can be used to implement gradient accumulation with only reduce-scatter but not all-reduce for HSDP"

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

MUST = ("[1.5, 1.5]", "[1.5, 1.5]")  # by rank
IS = ("[None, 3.0]", "[None, 3.0]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    m, x = TwoLayers(), torch.full((1, 1), 1.0 + rank)
    fully_shard(m, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards")))
    m.set_requires_all_reduce(False)
    m(x, "a").sum().backward()
    m.set_requires_all_reduce(True)
    m(x, "b").sum().backward()
    return [None if p.grad is None else p.grad.full_tensor().item() for p in m.parameters()]


class TwoLayers(nn.Module):
    """Two layers; forward uses one of them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x, name):
        """The output of that layer."""
        return getattr(self, name)(x)


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
