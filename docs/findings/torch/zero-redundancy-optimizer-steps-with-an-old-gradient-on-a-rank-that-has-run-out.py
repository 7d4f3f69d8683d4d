"""ZeroRedundancyOptimizer steps with an old gradient on a rank that has run out

Framework: torch 2.11 to 2.14, Join with DistributedDataParallel and ZeroRedundancyOptimizer

Law: P12

Program: Two layers of one weight each, SGD with a learning rate of 1. Rank 0 has one input, 1, and rank 1 has two, both
2. Both weights must move by 1.5 and by 1.

Why: A rank that has run out takes part in DDP's all-reduce with zeros, and drops the sum. Its gradients are then those
of its own last micro-batch. The join hook of the optimizer steps its share of the parameters by these.

Documented: in part: `join_hook` says that gradients must be set before it, but no hook of torch's sets them. The
example of `Join` and its tutorial are this program.

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
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

MUST = ("[-2.5, -2.5]", "[-2.5, -2.5]")  # by rank
IS = ("[-3.0, -2.5]", "[-3.0, -2.5]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    d = DistributedDataParallel(TwoLayers())
    o = ZeroRedundancyOptimizer(d.parameters(), torch.optim.SGD, lr=1.0)
    with Join([d, o]):
        for _ in range(1 + rank):
            o.zero_grad()
            d(torch.full((1, 1), 1.0 + rank)).sum().backward()
            o.step()
    return [p.item() for p in d.parameters()]


class TwoLayers(nn.Module):
    """The sum of two layers, with weights of zero."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.a.weight)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        """Their sum."""
        return self.a(x) + self.b(x)


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
