"""Overlapped gradient reduction mixes parameters where ranks run backward in different orders

Framework: megatron-core 0.16.1, `DistributedDataParallel` with `overlap_grad_reduce=True`; on CPU, with the current
device set to it

Law: P1, P5

Program: Parameters a and b of one element with a bucket each, on two ranks. Gradients are 1 and 10 on rank 0, 3 and
30 on rank 1. Rank 0's backward comes to b first, rank 1's to a first. Two iterations.

Why: From the second iteration on `register_grad_ready` in `param_and_grad_buffer.py` launches whichever bucket is
complete, and two ranks' reductions are matched by the order in which they begin. Without overlap, and in the first
iteration, all buckets go out at the end.

Documented: no; a transformer runs backward in one order on all ranks, and no text that asks for that was found

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
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer import TransformerConfig
from torch import nn

MUST = ("[2.0, 20.0]", "[2.0, 20.0]")  # by rank
IS = ("[15.5, 6.5]", "[6.5, 15.5]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


class Known(torch.autograd.Function):
    """Hands x on, and gives the parameter a gradient that is known."""

    @staticmethod
    def forward(ctx, x, parameter, gradient):
        """Gives x, with the parameter in its graph."""
        ctx.gradient = gradient
        return x + 0.0 * parameter

    @staticmethod
    def backward(ctx, grad):
        """Gives the gradient that is known."""
        return grad, torch.full((1,), ctx.gradient), None


class TwoInTurn(nn.Module):
    """Uses a and then b, or the other way around: backward comes first to what is used last."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x, rank):
        """Gives x, with both in its graph."""
        scale = 1.0 + 2 * rank
        uses = [(self.a, scale), (self.b, 10 * scale)]
        for parameter, gradient in uses if rank == 0 else reversed(uses):
            x = Known.apply(x, parameter, gradient)
        return x


def finding(rank):
    """The smallest program."""
    torch.cuda.current_device = lambda: "cpu"
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_attention_heads=1, num_layers=1, hidden_size=1)
    module = TwoInTurn()
    overlapped = DistributedDataParallelConfig(overlap_grad_reduce=True, bucket_size=1, average_in_collective=False)
    wrapped = DistributedDataParallel(config, overlapped, module)
    for _ in range(2):
        wrapped.zero_grad_buffer()
        wrapped(torch.ones(1, requires_grad=True), rank).sum().backward()
        wrapped.finish_grad_sync()
    return [module.a.main_grad.item(), module.b.main_grad.item()]


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
