"""pipegoose's DataParallel averages different parameters with each other

Framework: pipegoose 0.2.0, `DataParallel`

Law: P1, P5

Program: Parameters a and b of one zero each on two ranks. Gradients are 1 and 10 on rank 0, 3 and 30 on rank 1. Rank
0's backward comes to b first, rank 1's to a first.

Why: Each gradient is all-reduced in its own hook (`_average_grad` in `data_parallel.py`), and two ranks' reductions are
matched by the order in which they begin.

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
from pipegoose.distributed.parallel_context import ParallelContext
from pipegoose.nn.data_parallel.data_parallel import DataParallel
from torch import nn

MUST = ("[2.0, 20.0]", "[2.0, 20.0]")  # by rank
IS = ("[15.5, 6.5]", "[6.5, 15.5]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


class TwoInTurn(nn.Module):
    """Uses a and then b, or the other way around: backward comes first to what is used last."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x, rank):
        """The sum of x times a and 10 x times b."""
        uses = [(self.a, x), (self.b, 10 * x)]
        return sum(parameter * scale for parameter, scale in (uses if rank == 0 else reversed(uses)))


def finding(rank):
    """The smallest program."""
    dist.destroy_process_group()  # it makes one of its own, as torchrun's variables say
    port = str(20_000 + os.getppid() % 20_000)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    context = ParallelContext.from_torch(1, 1, 2, backend="gloo")
    model = TwoInTurn()
    wrapped = DataParallel(model, context).parallelize()
    wrapped(torch.tensor([1.0 + 2 * rank]), rank).sum().backward()
    return [model.a.grad.item(), model.b.grad.item()]


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
