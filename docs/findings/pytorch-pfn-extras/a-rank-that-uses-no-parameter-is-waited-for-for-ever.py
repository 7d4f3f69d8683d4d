"""A rank that uses no parameter is waited for for ever

Framework: pytorch-pfn-extras 0.9.0, `DistributedDataParallel`

Law: P5, P6

Program: A layer that rank 1 skips, so that its output has no graph and rank 1 runs no backward. Rank 0's gradient is 1.

Why: A backward hook of the module starts the synchronization, and a rank without a backward never comes to it.

Documented: no; its docstring calls `negotiate_grads`, the default, necessary for a graph that is dynamic, and says that
gradients are synchronized after backward

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
from pytorch_pfn_extras.nn.parallel import DistributedDataParallel
from torch import nn

MUST = ("0.5", "0.5")  # by rank
IS = ("nothing: it waits for ever", "None")  # how it begins, when this was written
LIMIT = 20  # seconds, after which a rank waits for ever

KEPT = []  # a wrapper that is collected takes its connections with it


class Skips(nn.Module):
    """A layer that is used where it is asked for."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def forward(self, x, used):
        """The layer's output, or x."""
        return self.layer(x) if used else x


def finding(rank):
    """The smallest program."""
    module = Skips()
    wrapped = DistributedDataParallel(module)
    KEPT.append(wrapped)
    loss = wrapped(torch.ones(1, 1), rank == 0).sum()
    if loss.requires_grad:
        loss.backward()
    gradient = module.layer.weight.grad
    return gradient if gradient is None else gradient.item()


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
