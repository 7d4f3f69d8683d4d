"""PostLocalSGDOptimizer shows groups that nobody steps by any more

Framework: torch 2.11 to 2.14, PostLocalSGDOptimizer after load_state_dict

Law: P12

Program: State is loaded; then a scheduler halves the rate. The step is taken with the old rate.

Why: It takes the list of groups of the optimizer that it wraps once, and that optimizer makes a new one when it
loads (`torch/distributed/optim/post_localSGD_optimizer.py`). A rate that is set in its `param_groups` changes
nothing.

Documented: no

Reports: none known; of apex's LARC NVIDIA/apex#766
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
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

MUST = ("0.5", "0.5")  # by rank
IS = ("0.0", "0.0")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    m = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    nn.init.ones_(m.module.weight)
    o = PostLocalSGDOptimizer(torch.optim.SGD(m.parameters(), lr=0.5), PeriodicModelAverager(period=1))
    o.load_state_dict(o.state_dict())
    torch.optim.lr_scheduler.LambdaLR(o, lambda _: 0.5)
    m(torch.full((1, 1), 2.0)).sum().backward()
    o.step()
    return m.module.weight.item()


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
