"""ZeRO-1 and ZeRO-2 cannot be constructed if all of a group is frozen

Framework: deepspeed 0.19.8 on CPU and gloo, ZeRO-1 and ZeRO-2

Law: P15

Program: Two layers of one parameter with a value of 1 on two ranks, each layer a group of SGD with a rate of 1. The
second layer is frozen. Inputs of 2 and 4, ZeRO-1.

Why: `DeepSpeedZeroOptimizer.__init__` in `stage_1_and_2.py` leaves frozen parameters out of each group, and then reads
the dtype of the group's first parameter, which is not there. ZeRO-3 leaves such a group out. So does
`_configure_optimizer` in `engine.py` with a group that had no parameter from the beginning.

Documented: no

Reports: deepspeedai/DeepSpeed#4055 and deepspeedai/DeepSpeed#4776 are related; open-mmlab/mmengine#1441 works around it
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
from torch import nn

MUST = ("-2.0", "-2.0")  # by rank
IS = ("IndexError", "IndexError")  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


def engine(model, stage, groups):
    """DeepSpeed's engine of that stage, with SGD over these groups, on CPU."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(dist.get_rank()), "WORLD_SIZE": str(len(MUST))}
    optimizer = torch.optim.SGD(groups, 1.0)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def finding(rank):
    """The smallest program."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for layer in model:
        nn.init.ones_(layer.weight)
    model[1].weight.requires_grad = False
    wrapped = engine(model, 1, [{"params": [layer.weight]} for layer in model])
    wrapped.backward(wrapped(torch.full((1, 1), 2.0 + 2 * rank)).sum())
    wrapped.step()
    return model[0].weight.item()


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
