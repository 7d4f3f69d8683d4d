"""FSDP2: a window of accumulation that is dropped comes back

Framework: torch 2.13, fully_shard

Law: P3

Program: A micro-batch without synchronization gives 4; gradients are zeroed; the next micro-batch gives 1, with
synchronization.

Why: What accumulates lies in an attribute of FSDP's own beside the parameter, and is added to the next gradient that
is reduced. Before `zero_grad` every gradient is None. `f.reset_iter_state()`, which by its documentation discards it,
changes nothing here. The `replicate` that is made of FSDP2 does the same.

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
from torch.distributed.fsdp import fully_shard

MUST = ("[[1.0, 1.0]]", "[[1.0, 1.0]]")  # by rank
IS = ("[[5.0, 5.0]]", "[[5.0, 5.0]]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    f, x = fully_shard(nn.Linear(2, 1, bias=False)), torch.ones(1, 2)
    f.set_requires_gradient_sync(False)
    f(4 * x).sum().backward()
    f.zero_grad()
    f.set_requires_gradient_sync(True)
    f(x).sum().backward()
    return f.weight.grad.full_tensor().tolist()


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
