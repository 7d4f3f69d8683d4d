"""What ranks do to the processes in which they run."""

import _thread
import contextlib
import faulthandler
import gc
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lockstep.worlds import progress

Result = Mapping[str, Any]


def collecting(payload: str, rank: int, world_size: int) -> Result:
    """Whether garbage is collected, which the fork servers do not."""
    return {"enabled": gc.isenabled(), "frozen": gc.get_freeze_count() > 0}


def leaving_an_alarm(payload: str, rank: int, world_size: int) -> Result:
    """It would ring in the next example."""
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    return {}


def leaving_a_dump(payload: str, rank: int, world_size: int) -> Result:
    """It would end the process in the next example."""
    faulthandler.dump_traceback_later(0.3, exit=True)
    return {}


def drawing_from_another_generator(payload: str, rank: int, world_size: int) -> Result:
    """Rank 0 puts another one in the place of NumPy's, and every rank draws before and after the others do."""
    if rank == 0:
        np.random.mtrand.set_bit_generator(np.random.PCG64(1))
    drawn = []
    for _ in range(3):
        drawn.append(float(np.random.randn()))
        dist.all_reduce(torch.ones(1))
    return {"drawn": drawn, "generator": type(np.random.mtrand.get_bit_generator()).__name__}


def sleeping(payload: str, rank: int, world_size: int) -> Result:
    """For as many seconds as the payload says."""
    time.sleep(float(payload))
    return {}


def computing(payload: str, rank: int, world_size: int) -> Result:
    """For as many seconds of a core's time as the payload says, on one core that it names."""
    seconds, core = payload.split(" on ")
    began, found = time.thread_time(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {int(core)})
    while time.thread_time() - began < float(seconds):
        pass
    os.sched_setaffinity(0, found)
    return {}


def setting_a_variable(payload: str, rank: int, world_size: int) -> Result:
    """What it was before, and what torchrun would have told."""
    before, os.environ["LOCKSTEP_ODDITY"] = os.environ.get("LOCKSTEP_ODDITY"), "set"
    return {"before": before, "local": os.environ["LOCAL_WORLD_SIZE"]}


def drawing_numbers(payload: str, rank: int, world_size: int) -> Result:
    """The first of each generator."""
    return {"drawn": [random.random(), float(np.random.rand()), float(torch.rand(1))]}


def forking(payload: str, rank: int, world_size: int) -> Result:
    """A child that comes back from here, by an exception or not, and a parent that waits for it."""
    if (child := os.fork()) == 0:
        if payload == "exits":
            sys.exit(3)
        return {}
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"status": status}


def having_children(payload: str, rank: int, world_size: int) -> Result:
    """One of multiprocessing's, as a DataLoader has."""
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    return {"status": child.exitcode}


def leaving_a_nameless_thread(payload: str, rank: int, world_size: int) -> Result:
    """One that `threading` does not know."""
    if rank == 0:
        begun = _thread.allocate_lock()
        begun.acquire()

        def sleep() -> None:
            begun.release()
            time.sleep(60)

        _thread.start_new_thread(sleep, ())
        begun.acquire()
    return {}


def importing(payload: str, rank: int, world_size: int) -> Result:
    """An import that takes a second, after a collective, and then something that takes as long as the payload says."""
    dist.barrier()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "takes_a_second.py").write_text("import time; time.sleep(1.0)")
        sys.path.insert(0, folder)
        try:
            import takes_a_second  # type: ignore[import-not-found]  # noqa: F401
        finally:
            sys.path.remove(folder)
            sys.modules.pop("takes_a_second", None)
    time.sleep(float(payload))
    return {}


def forking_while_importing(payload: str, rank: int, world_size: int) -> Result:
    """What is noted of imports once a process has died that was forked, and was importing."""
    if (pid := os.fork()) == 0:
        with progress.off_the_clock():
            os._exit(0)
    os.waitpid(pid, 0)
    assert progress._notes is not None
    _, since = progress._OFF_THE_CLOCK.unpack_from(progress._notes)
    return {"since": since}


def profiling(payload: str, rank: int, world_size: int) -> Result:
    """The names of what ran: of all ranks "in turn" or "at a time"; of rank 0 "alone"."""
    with contextlib.ExitStack() as during:
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        if payload != "alone" or rank == 0:
            during.enter_context(profile)
        if payload != "in turn":
            dist.barrier()
        torch.ones(3).add(1)
    dist.barrier()
    if payload == "alone" and rank:
        return {}
    return {"added": "aten::add" in [event.key for event in profile.key_averages()]}
