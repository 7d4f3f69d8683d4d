"""FSDP2 synchronizes nothing where the caller changes a view in place

Framework: torch 2.13 and 2.14, fully_shard

Law: P1

Program: A layer gets an input of three dimensions, and so gives a view; the caller divides it in place.

Why: What begins backward is a hook on the output, and a change in place of a view leaves its hooks behind. A warning
says so of every view that a unit gives, changed or not. FSDP1 ends in an error on every rank; DDP is right. The
`replicate` that is made of FSDP2 does the same.

Documented: a warning says that hooks may not run

Reports: pytorch/pytorch#181832
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
from torch.distributed.fsdp import fully_shard

MUST = ("[1.5, 1.5, 1.5]", "[1.5, 1.5, 1.5]")  # by rank
IS = ("[1.0, 1.0, 1.0]", "[2.0, 2.0, 2.0]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    m = nn.Linear(2, 3)
    fully_shard(m)
    y = m(torch.ones(1, 2, 2) * (1 + rank))
    y /= 2
    y.sum().backward()
    gradient = next(m.parameters()).grad  # whole, where it was not reduced, and else in shards
    return (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient)[:, 0].tolist()


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
