"""A rank that has run out does not follow a static graph

Framework: torch 2.13, DistributedDataParallel(static_graph=True).join()

Law: P5

Program: Rank 0 has no input, rank 1 has one.

Why: A rank without any input does not take part in the sum of the maps of used parameters, which the others take in
their first iteration because the graph is static: the shadow of an iteration asks for `find_unused_parameters`
alone (`_DDPJoinHook.main_hook`). On gloo the collectives of the two pair up wrongly from then on.

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

MUST = ("None", "[[2.0]]")  # by rank
IS = ("nothing: it waits for ever", "nothing: it waits for ever")  # how it begins, when this was written
LIMIT = 20  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    d = DistributedDataParallel(nn.Linear(1, 1, bias=False), static_graph=True)
    with d.join():
        for _ in range(rank):
            d(torch.full((1, 1), 4.0)).sum().backward()
    return None if d.module.weight.grad is None else d.module.weight.grad.tolist()


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
