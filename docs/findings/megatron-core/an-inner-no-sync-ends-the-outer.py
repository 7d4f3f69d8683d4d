"""An inner no_sync ends the outer

Framework: megatron-core 0.16.1, `DistributedDataParallel` with `overlap_grad_reduce=True`; on CPU, with the current
device set to it

Law: P3

Program: A parameter of one element on two ranks, with gradients of 1 on rank 0 and 3 on rank 1. One iteration as usual.
Then one micro-batch inside `no_sync`, after a nested `no_sync` has ended. Its buffer has half the rank's own gradient.

Why: `no_sync` in `distributed_data_parallel.py` ends by telling all buckets that the micro-batch is the last, whatever
they were told before it. So the micro-batch inside the outer one launches a reduction,
while the next one adds to the same buffer: replicas come apart, at random.

Documented: no; its docstring says that it turns off gradient synchronization

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

MUST = ("0.5", "1.5")  # by rank
IS = ("2.0", "2.0")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    torch.cuda.current_device = lambda: "cpu"
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_attention_heads=1, num_layers=1, hidden_size=1)
    module = nn.Linear(1, 1, bias=False)
    overlapped = DistributedDataParallelConfig(overlap_grad_reduce=True, average_in_collective=False)
    wrapped = DistributedDataParallel(config, overlapped, module)
    x = torch.full((1, 1), 1.0 + 2 * rank)
    wrapped.zero_grad_buffer()
    wrapped(x).sum().backward()
    wrapped.finish_grad_sync()
    wrapped.zero_grad_buffer()
    with wrapped.no_sync():
        with wrapped.no_sync():
            pass
        wrapped(x).sum().backward()
        time.sleep(5)  # what was launched ends
    return module.weight.main_grad.item()


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
