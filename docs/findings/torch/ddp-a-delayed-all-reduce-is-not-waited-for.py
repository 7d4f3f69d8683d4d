"""DDP: a delayed all-reduce is not waited for

Framework: torch 2.11 to 2.14, DistributedDataParallel(delay_all_reduce_named_params=...)

Law: P7

Program: The all-reduce of a large layer is delayed until the gradient of the layer before it comes. Its gradient is
read after backward.

Why: `_delayed_all_reduce_hook` launches the all-reduce with `async_op=True` and drops its handle. Neither backward nor
the next forward waits for it, so that an optimizer steps with what is there.

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
from torch.nn.parallel import DistributedDataParallel

MUST = ("1.5", "1.5")  # by rank
IS = ("0.5", "1.0")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    size = 2**24
    small, large = nn.Linear(1, 1, bias=False), nn.Linear(1, size, bias=False)
    nn.init.ones_(small.weight)
    d = DistributedDataParallel(
        nn.Sequential(small, large),
        delay_all_reduce_named_params=[("1.weight", large.weight)],
        param_to_hook_all_reduce=small.weight,
    )
    d(torch.full((1, 1), 1.0 + rank)).sum().backward()
    return large.weight.grad[-1].item()


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
