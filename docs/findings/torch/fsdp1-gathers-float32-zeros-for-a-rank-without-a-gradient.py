"""FSDP1 gathers float32 zeros for a rank that owns no gradient

Framework: torch 2.13, FullyShardedDataParallel.summon_full_params(with_grads=True)

Law: P5

Program: One parameter of one element in float64 on two ranks, a backward, then gradients are gathered. Rank 1 owns
nothing.

Why: A rank without a gradient takes part with `torch.zeros(size)`, which is float32, in an all-gather in which the
others send float64 (`unshard_grad` in `_flat_param.py`). The members of a collective must agree on the dtype. On
gloo a process aborts.

Documented: no

Reports: of the buffer that receives: pytorch/pytorch#112717; of this one none known
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
from torch.distributed.fsdp import FullyShardedDataParallel

MUST = ("tensor([[1.]], dtype=torch.float64)", "tensor([], dtype=torch.float64)")  # by rank
IS = ("", "nothing: its process died")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    f = FullyShardedDataParallel(
        nn.Linear(1, 1, bias=False).double(), use_orig_params=True, device_id=torch.device("cpu")
    )
    f(torch.ones(1, 1).double()).sum().backward()
    with FullyShardedDataParallel.summon_full_params(f, with_grads=True):
        return next(f.parameters()).grad


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
