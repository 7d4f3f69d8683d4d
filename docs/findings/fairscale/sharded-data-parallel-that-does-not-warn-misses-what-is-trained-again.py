"""ShardedDataParallel that does not warn misses a parameter that is trained again

Framework: fairscale 0.4.13, `ShardedDataParallel(warn_on_trainable_params_changed=False)`

Law: P1, P4, P15

Program: A weight and a bias of zero on two ranks with inputs of 1 and 3, and a rate of 1. The weight is frozen in the
first step and trained in the second, in which it loses 2.

Why: `_detect_train_change` compares `requires_grad` with its first values, and remembers new values only if it warns.
In the second step the weight is back at its first value, so that no change is seen: it has no hook, and `OSS` does not
broadcast it. Its owner steps it with a gradient of its own. With warnings the weight is right.

Documented: no; with the option "no warning will be logged", and `auto_refresh_trainable` handles "any trainability
change"

Reports: facebookresearch/fairscale#874, which asks for the option, is related
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

MUST = ("-2.0", "-2.0")  # by rank
IS = ("-1.0", "0.0")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    layer = nn.Linear(1, 1)
    nn.init.zeros_(layer.weight)
    optimizer = OSS(layer.parameters(), torch.optim.SGD, lr=1.0)
    options = {"reduce_buffer_size": 0, "warn_on_trainable_params_changed": False}
    wrapped = ShardedDataParallel(layer, optimizer, **options)
    for is_trained in (False, True):
        layer.weight.requires_grad_(is_trained)
        wrapped.zero_grad(set_to_none=True)
        wrapped(torch.full((1, 1), 1.0 + 2 * rank)).sum().backward()
        optimizer.step()
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
