"""accelerate's stateful loader forgets what it has loaded

Framework: accelerate 1.15.0, `DataLoaderConfiguration(use_stateful_dataloader=True)`, with torchdata 0.11.0

Law: P20

Program: Six samples, one process. A job that has read two of them is saved, loaded, and saved again before it reads
on; what is loaded from the second save begins the epoch anew.

Why: `state_dict` returns a copy that is made in the constructor and with each batch, and `load_state_dict` leaves
that copy as it is (`DataLoaderAdapter` in `accelerate/data_loader.py`).

Documented: no; the documentation promises a loader that goes on from where it was saved

Reports: none known
"""

import multiprocessing
import os
import queue
import sys
import tempfile
import time
import warnings

import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

MUST = ("[2, 3, 4, 5]",)  # by rank
IS = ("[0, 1, 2, 3, 4, 5]",)  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def make_loader():
    """A loader of six samples, as accelerate prepares it."""
    stateful = DataLoaderConfiguration(use_stateful_dataloader=True)
    return Accelerator(cpu=True, dataloader_config=stateful).prepare(DataLoader(range(6), batch_size=1))


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
