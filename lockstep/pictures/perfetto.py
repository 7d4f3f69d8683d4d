"""Lanes as a trace: JSON of trace events, as torch's profiler writes it, for chrome://tracing and ui.perfetto.dev.

A rank is a process with two threads, computing and communicating. Flows lead from a launch to its collective; bytes
held are a counter. Times are microseconds.
"""

import json
from collections.abc import Iterator
from typing import Any

from lockstep.pictures.lanes import KINDS, Lane, Lanes, Transfer

COMPUTING, COMMUNICATING = 1, 2  # threads


def trace(lanes: Lanes) -> str:
    """The text of the file."""
    events = [event for lane in lanes.lanes for event in _of_lane(lane)]
    events += [event for transfer in lanes.transfers for event in _of_transfer(transfer)]
    told = {"title": lanes.title, "clock": lanes.clock, **lanes.facts}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": told}, indent=1) + "\n"


def _of_lane(lane: Lane) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": lane.rank, "args": {"name": f"rank {lane.rank}"}}
    for thread, name in ((COMPUTING, "computing"), (COMMUNICATING, "communicating")):
        yield {"ph": "M", "name": "thread_name", "pid": lane.rank, "tid": thread, "args": {"name": name}}
    for doing in lane.doings:
        name = f"{KINDS[doing.kind]} {doing.name}".strip()
        yield _span(name, doing.kind, lane.rank, COMPUTING, doing.start, doing.end)
    for when, held in lane.held:
        yield {"ph": "C", "name": "bytes held", "pid": lane.rank, "ts": 1000 * when, "args": {"bytes": held}}


def _of_transfer(transfer: Transfer) -> Iterator[dict[str, Any]]:
    name = f"{transfer.operation} {transfer.number}"
    for rank, launched in sorted(transfer.launched.items()):
        told = {"bytes": transfer.bytes, "carries": transfer.contents.get(rank, ""), "members": transfer.members}
        yield _span(name, "collective", rank, COMMUNICATING, transfer.start, transfer.end) | {"args": told}
        flow = {"name": "launch", "cat": "launch", "id": f"{transfer.number} of rank {rank}", "pid": rank}
        yield {**flow, "ph": "s", "tid": COMPUTING, "ts": 1000 * launched}
        yield {**flow, "ph": "f", "bp": "e", "tid": COMMUNICATING, "ts": 1000 * transfer.start}


def _span(name: str, kind: str, rank: int, thread: int, start: float, end: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": rank,
        "tid": thread,
        "ts": 1000 * start,
        "dur": 1000 * (end - start),
    }
