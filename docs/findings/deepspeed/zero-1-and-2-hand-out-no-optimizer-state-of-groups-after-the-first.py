"""ZeRO-1 and 2 hand out no optimizer state of groups after the first

Framework: deepspeed 0.19.8 on CPU and gloo, ZeRO-1 and ZeRO-2

Law: P1

Program: Two parameters, each in a group of its own, Adam, one step. Then the caller asks for the first moment of each,
by `safe_get_full_optimizer_state`, stage by stage.

Why: The step steps one group after the other, and links all parameters to their state after the first group
(`_lazy_init_hp_params_optimizer_state` in `stage_1_and_2.py`), when the optimizer has no state of the others yet. It
links once. So the function raises "exp_avg not found in optimizer state fragment" for parameters of other groups.

Documented: no; the documentation says that the function returns the state of a parameter

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
from deepspeed.utils import safe_get_full_optimizer_state
from torch import nn

MUST = ("[True, True, True, True]",)  # by rank
IS = ("[True, False, True, False]",)  # how it begins, when this was written
LIMIT = 120  # seconds, after which a rank waits for ever


class Two(nn.Module):
    """Two parameters."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        """A loss that uses both."""
        return (self.a * x + self.b * x).sum()


def has_moment(parameter):
    """True if DeepSpeed hands out its first moment."""
    try:
        return safe_get_full_optimizer_state(parameter, "exp_avg") is not None
    except ValueError:
        return False


def after_a_step(stage):
    """For each parameter, whether its first moment is there after a step."""
    model = Two()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(dist.get_rank()), "WORLD_SIZE": str(len(MUST))}
    groups = [{"params": [model.a]}, {"params": [model.b], "weight_decay": 0.5}]
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.Adam(groups, 0.5), config=config)[0]
    engine.backward(engine(torch.ones(1)))
    engine.step()
    return [has_moment(model.a), has_moment(model.b)]


def finding(rank):
    """The smallest program."""
    return [*after_a_step(1), *after_a_step(2)]


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
