"""FSDP1 saves Adam's second moment as the first

Framework: torch 2.13, FullyShardedDataParallel.optim_state_dict with its default configuration, on a CPU

Law: P11

Program: Two ranks, one parameter of two elements, one step of Adam; then the whole optimizer state is gathered.

Why: All states are gathered into one buffer, one after the other, and a view of it is kept. The default offloads
that view to the CPU, which copies it from a GPU and does nothing on a CPU, so that every state has the value of the
last one. With `offload_to_cpu=False` the view is cloned, and all is well (`_unflatten_orig_param_states` in
`torch/distributed/fsdp/_optim_utils.py`).

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
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

MUST = ("[[0.3, 0.3]]", "[[0.3, 0.3]]")  # by rank
IS = ("[[0.009, 0.009]]", "[[0.009, 0.009]]")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def finding(rank):
    """The smallest program."""
    f = FullyShardedDataParallel(nn.Linear(2, 1, bias=False), use_orig_params=True, device_id=torch.device("cpu"))
    o = torch.optim.Adam(f.parameters())
    f(torch.full((1, 2), 3.0)).sum().backward()
    o.step()
    with FullyShardedDataParallel.state_dict_type(f, StateDictType.FULL_STATE_DICT):
        state = FullyShardedDataParallel.optim_state_dict(f, o)["state"]
    return [[round(x, 4) for x in row] for row in state["weight"]["exp_avg"].tolist()] if state else MUST[rank]


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
