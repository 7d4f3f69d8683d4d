"""OSS steps a frozen weight that has a gradient on its owner alone

Framework: fairscale 0.4.13, `OSS` with `ShardedDataParallel`

Law: P4, P15

Program: A weight and a bias of one on two ranks, inputs of 1, a rate of 1 and a weight decay of 0.5. The first step
moves the weight by 1.5. Then gradients are zeroed, the weight is frozen, and a second step decays it by half.

Why: The owner's optimizer steps what has a gradient, be it frozen or not, as torch's do. `OSS` broadcasts only what is
trained.

Documented: no; torch's optimizers decay it on every rank

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
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn

MUST = ("-0.25", "-0.25")  # by rank
IS = ("-0.25", "-0.5")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    layer = nn.Linear(1, 1)
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
    optimizer = OSS(layer.parameters(), torch.optim.SGD, lr=1.0, weight_decay=0.5)
    wrapped = ShardedDataParallel(layer, optimizer, reduce_buffer_size=0)
    for is_trained in (True, False):
        layer.weight.requires_grad_(is_trained)
        wrapped(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        wrapped.zero_grad()
    return layer.weight.item()


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
