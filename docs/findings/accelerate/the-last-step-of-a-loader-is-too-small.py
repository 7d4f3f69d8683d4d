"""The last step of a loader is too small with accelerate's accumulate

Framework: accelerate 1.15.0, `Accelerator.accumulate`

Law: P19

Program: Three micro-batches whose gradient is 1, one process, two micro-batches to a step. The first step has two of
them, the second has the one that is left, and half its gradient.

Why: `accumulate` steps at the end of a loader, however many micro-batches there were since the last step. `backward`
divides each loss by `gradient_accumulation_steps` all the same (`accelerate/accelerator.py`).

Documented: no; accelerate "will automatically know whether to step through the prepared optimizer and how to adjust the
loss" (<https://huggingface.co/docs/accelerate/en/usage_guides/gradient_accumulation>). The guide also says that the end
of a loader steps, but not with which divisor.

Reports: none known for accelerate; other trainers had the same fault: huggingface/transformers#39659,
modelscope/ms-swift#10084, Lightning-AI/pytorch-lightning#19987
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
from accelerate import Accelerator
from torch.utils.data import DataLoader

MUST = ("[1.0, 1.0]",)  # by rank
IS = ("[1.0, 0.5]",)  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    linear = torch.nn.Linear(1, 1, bias=False)
    model, optimizer, loader = accelerator.prepare(
        linear, torch.optim.SGD(linear.parameters()), DataLoader(torch.ones(3, 1), batch_size=1)
    )
    gradients = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            if accelerator.sync_gradients:
                gradients.append(linear.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
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
