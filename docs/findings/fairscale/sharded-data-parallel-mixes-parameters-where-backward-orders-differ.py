"""ShardedDataParallel mixes parameters where ranks run backward in different orders

Framework: fairscale 0.4.13, `ShardedDataParallel(reduce_buffer_size=0)`

Law: P1, P5

Program: Three parameters of one element on two ranks. Gradients of a, b and c are 1, 2 and 4 on rank 0, and three
times that on rank 1. Rank 0 runs backward from c to a, and rank 1 from a to c.

Why: Each parameter's gradient is reduced to its owner as its hook fires, and the reductions of two ranks are matched
by the order in which they begin. With buckets, as by default, two parameters make both ranks wait for ever.

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
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn

MUST = ("[2.0, 4.0, 8.0]", "[2.0, 4.0, 8.0]")  # by rank
IS = ("[6.5, 4.0, 3.5]", "[6.5, 4.0, 3.5]")  # how it begins, when this was written
LIMIT = 20  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    parameters = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(3)])

    class Chain(nn.Module):
        """Uses the parameters in another order on each rank, so that backward comes to them in another."""

        def __init__(self):
            super().__init__()
            self.all = parameters

        def forward(self, x):
            for index in range(3) if rank == 0 else reversed(range(3)):
                x = Scale.apply(x, self.all[index], 2.0**index * (1 + 2 * rank))
            return x

    class Scale(torch.autograd.Function):
        """Hands x on, and gives the parameter a gradient that is known."""

        @staticmethod
        def forward(ctx, x, parameter, gradient):
            ctx.gradient = gradient
            return x + 0.0 * parameter

        @staticmethod
        def backward(ctx, grad):
            return grad, torch.full((1,), ctx.gradient), None

    optimizer = OSS(parameters.parameters(), torch.optim.SGD, lr=1.0)
    wrapped = ShardedDataParallel(Chain(), optimizer, reduce_buffer_size=0)
    wrapped(torch.ones(1, requires_grad=True)).sum().backward()
    optimizer.step()
    return [1.0 - parameter.item() for parameter in parameters]


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
