"""Backward through broadcast gives the root zeros in a group without rank 0

Framework: torch 2.11 to 2.13, torch.distributed.nn.functional.broadcast

Law: P14

Program: Rank 1 broadcasts in a group of its own and differentiates the sum.

Why: Backward compares the root's global rank with its rank in the group. The backward of `all_gather` raises
"Global rank 0 is not part of group" there. Both functions are deprecated.

Documented: no

Reports: pytorch/pytorch#130515
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
import torch.distributed.nn.functional

MUST = ("outside", "[1.0, 1.0]")  # by rank
IS = ("outside", "[0.0, 0.0]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    group = dist.new_group([1])
    if rank == 0:
        return "outside"
    x = torch.ones(2, requires_grad=True)
    torch.distributed.nn.functional.broadcast(x, src=1, group=group).sum().backward()
    return x.grad.tolist()


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
