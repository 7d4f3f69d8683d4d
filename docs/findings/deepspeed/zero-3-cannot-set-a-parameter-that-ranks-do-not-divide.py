"""ZeRO-3 cannot set a parameter whose size the ranks do not divide

Framework: deepspeed 0.19.8 on CPU and gloo, ZeRO-3, `safe_set_full_fp32_param`

Law: P11

Program: A parameter of three elements on two ranks is set to ones.

Why: The last rank's part is shorter than its padded share.

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

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_set_full_fp32_param
from torch import nn

MUST = ("[1.0, 1.0, 1.0]", "[1.0, 1.0, 1.0]")  # by rank
IS = ("RuntimeError", "RuntimeError")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def engine(model, stage):
    """DeepSpeed's engine of that stage, with SGD, on CPU."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(dist.get_rank()), "WORLD_SIZE": str(len(MUST))}
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def finding(rank):
    """The smallest program."""
    model = nn.Linear(3, 1, bias=False)
    wrapped = engine(model, 3)
    wrapped.backward(wrapped(torch.ones(1, 3)).sum())
    wrapped.step()
    safe_set_full_fp32_param(model.weight, torch.ones(1, 3))
    return safe_get_full_fp32_param(model.weight).flatten().tolist()


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
