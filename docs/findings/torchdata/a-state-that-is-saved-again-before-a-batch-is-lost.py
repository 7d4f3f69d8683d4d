"""A state that is saved again before the next batch is lost

Framework: torchdata 0.11.0, `StatefulDataLoader` over `StatefulDistributedSampler`

Law: P20

Program: Eight samples on two ranks, of which this is rank 0. A job that has read two samples is saved, loaded, and
saved again before it reads on; what is loaded from the second save begins the epoch anew.

Why: The sampler saves `yielded`, which is 0 between `load_state_dict` and the first batch
(`torchdata/stateful_dataloader/sampler.py`). Over torch's `DistributedSampler` the same loader goes on where it was.

Documented: no; the documentation promises a state for checkpoints in the middle of an epoch

Reports: meta-pytorch/data#1515, which was merged after 0.11.0
"""

import multiprocessing
import os
import queue
import sys
import tempfile
import time
import warnings

import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

MUST = ("[4, 6]",)  # by rank
IS = ("[0, 2, 4, 6]",)  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def make_loader():
    """Every second one of eight samples."""
    sampler = StatefulDistributedSampler(range(8), 2, 0, shuffle=False)
    return StatefulDataLoader(range(8), batch_size=1, sampler=sampler)


def finding(rank):
    """The smallest program."""
    loader = make_loader()
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    loader = make_loader()
    loader.load_state_dict(state)
    state = loader.state_dict()
    loader = make_loader()
    loader.load_state_dict(state)
    return [batch.item() for batch in loader]


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
