"""Short ways to run programs on a world and to look at what came back."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.worlds.contract import Job, Outcome, RankReport, World

Calls = list[list[dict[str, Any]]]


def program(
    world: World, name: str, world_size: int, payload: Any = None, module: str = "programs", **options: Any
) -> Outcome:
    """The outcome of a function of `worlds.tests.programs`, or of another module there."""
    return run_of(module, world, name, world_size, json.dumps(payload), **options)


def run_of(module: str, world: World, name: str, world_size: int, payload: str = "", **options: Any) -> Outcome:
    """The outcome of a function of a module of `worlds.tests`, which is handed the payload as it is."""
    return world.run(Job(f"lockstep.worlds.tests.{module}:{name}", payload, world_size, **options))


def results(outcome: Outcome) -> list[Mapping[str, Any]]:
    """What the ranks returned; none of them failed."""
    assert [report.error for report in outcome] == [None] * len(outcome)
    return [report.result for report in outcome if report.result is not None]


def call(do: str, **options: Any) -> dict[str, Any]:
    """One command of `worlds.tests.commands.calls`."""
    return {"do": do, **options}


def run_calls(world: World, by_rank: Calls, **options: Any) -> Outcome:
    """The outcome of a list of commands for each rank."""
    return program(world, "calls", len(by_rank), by_rank, "programs", **options)


def kinds(outcome: Outcome) -> list[str | None]:
    """How each rank ended; None: with a result."""
    return [None if report.error is None else report.error.kind for report in outcome]


def messages(outcome: Outcome) -> list[str]:
    """The error of each rank; empty where it has none."""
    return ["" if report.error is None else report.error.message for report in outcome]


def plain(value: Any) -> Any:
    """Reports and results as lists, tuples and text that compare with ==."""
    if isinstance(value, RankReport):
        return plain(value.result), value.error, value.collectives
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return value


def alive(pid: int) -> bool:
    """True if the process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: Iterable[int], seconds: float = 10.0) -> bool:
    """True if all of these processes end within so many seconds."""
    left = set(pids) - {os.getpid()}
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if alive(pid)}
        time.sleep(0.02)
    return not left
