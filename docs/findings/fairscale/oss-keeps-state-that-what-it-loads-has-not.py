"""OSS keeps state that what it loads has not

Framework: fairscale 0.4.13, `OSS.load_state_dict`

Law: P11

Program: A weight of zero on two ranks, SGD with a momentum of 0.9 and a rate of 1, gradients of 1. State is saved
before the first step and loaded after it; then a second step.

Why: `load_state_dict` puts what it is given into the shard's optimizer and removes nothing. torch's optimizers replace
their state, and `ZeroRedundancyOptimizer` has the same fault.

Documented: no; its docstring says that it restores the parameter groups "as well as the shard"

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
from fairscale.optim.oss import OSS
from torch import nn

MUST = ("-2.0", "-2.0")  # by rank
IS = ("-2.9", "-2.9")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = OSS([weight], torch.optim.SGD, lr=1.0, momentum=0.9)
    saved = optimizer.state_dict(all_ranks=True)
    for step in range(2):
        if step:
            optimizer.load_state_dict(saved)
        weight.grad = torch.ones(1)
        optimizer.step()
    return round(weight.item(), 4)


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
