"""DDP with a static graph synchronizes nothing where a model gives a dataclass

Framework: torch 2.11 to 2.14, DistributedDataParallel(static_graph=True)

Law: P1

Program: The model returns a dataclass that holds its output; gradients are 1 and 3.

Why: What starts the reduction is put behind the tensors that a pytree finds in the outputs, and in a class that
nobody has registered it finds none. FSDP2 of torch 2.11 did the same: pytorch/pytorch#173415.

Documented: as a limitation in reports, not in the documentation

Reports: pytorch/pytorch#93125, huggingface/transformers#25357
"""

import multiprocessing
import os
import queue
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MUST = ("2.0", "2.0")  # by rank
IS = ("1.0", "3.0")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    d = DistributedDataParallel(Model(1, 1, bias=False), static_graph=True)
    d(torch.full((1, 1), 1.0 + 2 * rank)).y.sum().backward()
    return d.module.weight.grad.item()


@dataclass
class Given:
    """An output."""

    y: torch.Tensor


class Model(nn.Linear):
    """A layer whose output is in a dataclass."""

    def forward(self, x):
        """The output, in a dataclass."""
        return Given(super().forward(x))


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
