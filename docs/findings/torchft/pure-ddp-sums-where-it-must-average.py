"""PureDistributedDataParallel sums where it must average

Framework: torchft-nightly 2026.10.26, `PureDistributedDataParallel`

Law: P1

Program: A parameter of one element on two replicas, with inputs of 1 and 3.

Why: `post_grad_hook` in `torchft/ddp.py` drops the work that `manager.allreduce` returns, and the manager divides
when that work is waited for. Gradients can also be read before they are reduced.

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
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft.ddp import PureDistributedDataParallel
from torchft.manager import Manager

MUST = ("2.0", "2.0")  # by rank
IS = ("4.0", "4.0")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


class Both(Manager):
    """torchft's manager, of two replicas that are both there; all-reduce is its own."""

    def __init__(self):
        self._pg, self._timeout = dist.group.WORLD, timedelta(seconds=60)

    def errored(self):
        """No error has been seen."""

    def wait_quorum(self):
        """Both replicas are there."""

    def num_participants(self):
        """How many replicas take part."""
        return 2

    def is_participating(self):
        """This replica takes part."""
        return True


def finding(rank):
    """The smallest program."""
    layer = nn.Linear(1, 1, bias=False)
    wrapped = PureDistributedDataParallel(Both(), layer)
    wrapped(torch.full((1, 1), 1.0 + 2 * rank)).sum().backward()
    time.sleep(2)  # nobody waits for the reduction
    return layer.weight.grad.item()


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
