"""FSDP2 with a reduce_dtype cannot leave a unit unused while gradients accumulate

Framework: torch 2.13, fully_shard with MixedPrecisionPolicy(reduce_dtype=...)

Law: P3

Program: Of two units the forward uses one, and gradients are not synchronized. Without a reduce_dtype it runs.

Why: After backward every unit is asked to cast what it has accumulated, and one that was never gathered has not yet
the attribute that is asked for.

Documented: no

Reports: pytorch/pytorch#194058
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
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

MUST = ("ran", "ran")  # by rank
IS = (
    "AttributeError: 'FSDPParam' object has no attribute '_unsharded_param'",
    "AttributeError: 'FSDPParam' object has no attribute '_unsharded_param'",
)  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    f, policy = OneOfTwo(), MixedPrecisionPolicy(reduce_dtype=torch.float64)
    for unit in (f.a, f.b, f):
        fully_shard(unit, mp_policy=policy)
    f.set_requires_gradient_sync(False)
    f(torch.ones(1, 1)).sum().backward()
    return "ran"


class OneOfTwo(nn.Module):
    """Two units, of which forward uses the first."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x):
        """The first alone."""
        return self.a(x)


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
