"""FSDP2 loses a loss of gradients in the first step

Framework: torch 2.11 to 2.14, fully_shard

Law: P1

Program: A loss made of gradients by the inputs, as gradient penalties and forces of energy models are:
`torch.autograd.grad` with a graph, then backward, in two steps. Every gradient must be the mean 1.5; DDP without
options gives it.

Why: What begins a backward is hung on the outputs, which `torch.autograd.grad` has passed already. Where outputs are
part of the loss, all is right. The `replicate` that is made of FSDP2 does the same.

Documented: no

Reports: related: pytorch/pytorch#172543
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
from torch.distributed.fsdp import fully_shard

MUST = ("[[[1.5], [1.5]], [[1.5], [1.5]]]", "[[[1.5], [1.5]], [[1.5], [1.5]]]")  # by rank
IS = ("[None, [[1.5], [1.5]]]", "[None, [[1.5], [1.5]]]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    m = nn.Linear(1, 2, bias=False)
    f = fully_shard(m)
    gradients = []
    for _ in range(2):
        x = torch.ones(1, 1, requires_grad=True)
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        ((rank + 1) * g.sum()).backward()
        (p,) = f.parameters()
        gradients.append(None if p.grad is None else p.grad.full_tensor().tolist())
        p.grad = None
    return gradients


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
