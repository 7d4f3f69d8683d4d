"""Ways in which one rank can go wrong between two collectives, and what a world must say of each."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from lockstep.worlds import devices
from lockstep.worlds.contract import Outcome
from lockstep.worlds.tests.exchanges import data

HANG = "loop_for_ever"


def fail() -> NoReturn:
    raise RuntimeError("had enough")


def loop_for_ever() -> NoReturn:
    while True:
        time.sleep(0.01)


def hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(1000)


def once_more() -> None:
    """The others' next collective meets this one, and then they have none left for ours."""
    dist.all_reduce(data(0, 5).to(devices.place()))


def allocate_without_bound() -> NoReturn:
    kept = []
    while True:
        kept.append(torch.ones(1 << 24))  # touched, so that it is really held


def print_megabytes() -> None:
    for _ in range(64):
        print("x" * (1 << 18))
        time.sleep(0.005)
    sys.stdout.flush()
    print("the end")


def leave_a_thread() -> None:
    threading.Thread(target=loop_for_ever, name="nobody's", daemon=True).start()


def leave_a_process() -> None:
    subprocess.Popen(["sleep", "1000"])


def leave_a_daemon() -> None:
    """In a session of its own, and its parent has gone."""
    subprocess.run("setsid sleep 1000 &", shell=True, check=True)


@dataclass(frozen=True)
class Fault:
    """What one rank does, and how its report must read: a kind, and a pattern in its message or details.

    ``kind`` None: the example has its result all the same. ``left``: what must be told of what it left behind.
    "ALLOWED" in ``says`` stands for the GiB that a rank may hold.
    """

    act: Callable[[], object]
    kind: str | None
    says: str = ""
    left: str = ""


FAULTS: dict[str, Fault] = {
    "raises": Fault(fail, "raised", "RuntimeError: had enough"),
    "calls sys.exit": Fault(lambda: sys.exit(3), "raised", "SystemExit: 3"),
    "calls os._exit": Fault(lambda: os._exit(3), "died", "its process exited with code 3"),
    "is killed": Fault(lambda: os.kill(os.getpid(), signal.SIGKILL), "died", "its process was killed by SIGKILL"),
    "segfaults": Fault(lambda: ctypes.string_at(0), "died", "its process was killed by SIGSEGV"),
    "is stopped": Fault(lambda: os.kill(os.getpid(), signal.SIGSTOP), "died", r"was stopped by a signal \(SIGSTOP\)"),
    "hangs in Python": Fault(loop_for_ever, "timeout", f"in {HANG}"),
    "hangs in C with the GIL": Fault(hold_the_gil, "timeout", "in hold_the_gil"),
    "hangs in a collective": Fault(once_more, "timeout", "3 collectives launched"),
    "disagrees": Fault(
        lambda: dist.all_reduce(torch.ones(3, device=devices.place())),
        "mismatch",
        r"ranks disagree on collective 2 .*3 x floa",
    ),
    "allocates without bound": Fault(
        allocate_without_bound, "died", "GiB of memory and was ended; ALLOWED GiB are allowed"
    ),
    "prints megabytes": Fault(print_megabytes, None),
    "leaves a thread": Fault(leave_a_thread, None, left=r"a thread \(nobody's\)"),
    # Linux gives a process its new name a moment after its parent knows of it.
    "leaves a process": Fault(leave_a_process, None, left=r"a process \((sleep|python[\d.]*)\)"),
    "leaves a daemon": Fault(leave_a_daemon, None, left=r"a process \((sleep|setsid|sh)\)"),
    "leaves a group": Fault(lambda: dist.new_group([dist.get_rank()], use_local_synchronization=True), None),
}


def with_a_fault(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: JSON of the name of a fault and the rank that has it (or nothing). Sums before and after it."""
    asked = json.loads(payload)
    first, second = (data(rank, count).to(devices.place()) for count in (4, 5))
    dist.all_reduce(first)
    if asked and asked["rank"] == rank:
        FAULTS[asked["fault"]].act()
    dist.all_reduce(second)
    return {"pid": os.getpid(), "first": first.cpu().numpy(), "second": second.cpu().numpy()}


def complaints(outcome: Outcome, name: str | None, culprit: int, gib: int = 1) -> list[str]:
    """What is not as it must be in the outcome of `with_a_fault`; empty if all is. ``gib``: what a rank may hold."""
    found = []
    fault = FAULTS[name] if name else Fault(lambda: None, None)
    for rank, report in enumerate(outcome):
        error = report.error
        if fault.kind is None or error is None:
            if error is not None:
                found.append(f"rank {rank} must have a result, not {error.kind}: {error.message}")
            elif report.result is None:
                found.append(f"rank {rank} has neither a result nor an error")
            elif fault.kind is None and not _right(report.result, len(outcome)):
                found.append(f"rank {rank} has wrong sums")
    mine = outcome[culprit]
    if fault.kind is not None:
        kind, text = (
            ("", "") if mine.error is None else (mine.error.kind, f"{mine.error.message}\n{mine.error.details}")
        )
        says = fault.says.replace("ALLOWED", str(gib))
        if not re.fullmatch(fault.kind, kind) or not re.search(says, text):
            found.append(f"rank {culprit} {name}: must be {fault.kind}, {says!r}, and is {kind}: {text[:300]}")
        others = {report.error.kind for rank, report in enumerate(outcome) if rank != culprit and report.error}
        allowed = {"abandoned", "raised", fault.kind if fault.kind == "mismatch" else "abandoned"}
        if others - allowed:
            found.append(f"rank {culprit} {name}: the others are {sorted(others)}")
    if fault.left and not any(re.search(fault.left, left) for left in mine.left):
        found.append(f"rank {culprit} {name}: {fault.left!r} is not told, only {mine.left}")
    if not fault.left and (left := [each for report in outcome for each in report.left]):
        found.append(f"{name}: nothing was left behind, but {left} is told")
    return found


def _right(result: Mapping[str, Any], size: int) -> bool:
    for key, count in (("first", 4), ("second", 5)):
        if result[key].tolist() != torch.stack([data(rank, count) for rank in range(size)]).sum(0).tolist():
            return False
    return True
