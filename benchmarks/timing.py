"""The time of a call: replayed from a CUDA graph, so that the host does not count; called; and on the host alone."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

Call = Callable[[int], object]  # runs on the set of tensors of that number

ROUNDS = 7 if torch.cuda.is_available() else 1
TURN = 3e-3  # seconds that a contestant's turn should take, of at most MOST_CALLS calls
MOST_CALLS = 50


@dataclass(frozen=True)
class Took:
    """Seconds of a call, medians. ``graph``: None where it cannot be captured; ``host``: until it returns."""

    graph: float | None
    eager: float
    host: float


def compare(calls: dict[str, Call], sets: int, captured: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Time each call, all taking turns. ``captured``: those to replay from a graph too."""
    counts, graphs = {}, {}
    for name, call in calls.items():
        call(0)  # compiles
        counts[name] = max(1, min(MOST_CALLS, int(TURN / eager(call, sets, 0, 1)[0])))
        graphs[name] = capture(call, sets) if name in captured else None
    eagerly: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    replayed: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS):
        for name, call in calls.items():
            eagerly[name].append(eager(call, sets, number, counts[name]))
            if (graph := graphs[name]) is not None:
                replayed[name].append(replay(graph, sets, counts[name]))
    return {name: asdict(summed_up(eagerly[name], replayed[name])) for name in calls}


def summed_up(eagerly: list[tuple[float, float]], replayed: list[float]) -> Took:
    """Medians over rounds."""
    whole, host = (statistics.median(each) for each in zip(*eagerly, strict=True))
    return Took(statistics.median(replayed) if replayed else None, whole, host)


def eager(call: Call, sets: int, first: int, count: int) -> tuple[float, float]:
    """Seconds a call, so many being queued one after another: until the device has done them, and on the host."""
    synchronize()
    start = time.perf_counter()
    for number in range(first, first + count):
        call(number % sets)
    queued = time.perf_counter()
    synchronize()
    return (time.perf_counter() - start) / count, (queued - start) / count


def capture(call: Call, sets: int) -> Any:
    """A graph of one call for each set; None without a GPU, or where CUDA refuses."""
    if not torch.cuda.is_available():
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for number in range(sets):
                call(number)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


def replay(graph: Any, sets: int, count: int) -> float:
    """Seconds a call by the device's clock."""
    rounds = max(2, count // sets)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(rounds):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / (rounds * sets)


def synchronize() -> None:
    """Waits for the device where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
