"""The main loop of a rank's process: it joins a group of its backend once, and runs one example after the other."""

import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from lockstep.worlds import devices, progress
from lockstep.worlds.contract import Job, RankReport, raised
from lockstep.worlds.process_tree import Leftovers, end_if_forked

if TYPE_CHECKING:
    from lockstep.worlds.backend_group import Groups

CONNECTS = 5.0  # seconds that the members of a group are given to meet when their example ends


@dataclass(frozen=True)
class Setup:
    """The set-up that a rank gets when it starts.

    ``store``: where ranks meet, "file:path" or "tcp:host:port:prefix". ``local_rank``: among the ranks of its host,
    None where all are on one. ``limit``: seconds after which the supervisor ends an example. ``hosts_apart``: NCCL is
    told that each rank is a host of its own, so that several may share a GPU. ``keeps_groups``: connections of groups
    that an example makes serve the next that makes them of the same members.
    """

    backend: str
    device: str = "cpu"
    rank: int = 0
    local_rank: int | None = None
    store: str = ""
    limit: float = 30.0
    hosts_apart: bool = False
    keeps_groups: bool = False


def serve(connection: Connection, setup: Setup) -> None:
    """One rank's process: a job in, a report out. torch is imported here only, not in the supervisor.

    In place of a job, a world size: the ranks are to meet in a group of it, and None comes back when they have.
    """
    import torch

    from lockstep.worlds.backend_group import Groups
    from lockstep.worlds.fresh import Environment
    from lockstep.worlds.settings import OF_A_THREAD, Surroundings

    if setup.hosts_apart:
        os.environ["NCCL_HOSTID"] = f"lockstep-{socket.gethostname()}-{os.getpid()}"
    if setup.device == "cuda":  # the same bits in every run of an example
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
    local_rank = setup.rank if setup.local_rank is None else setup.local_rank
    devices.settle(setup.device, local_rank)
    torch.set_num_threads(1)
    shared = open_store(setup.store)
    groups = Groups(setup.backend, setup.rank, shared, setup.limit, setup.keeps_groups)
    environment, of_this_thread = Environment(), Surroundings(OF_A_THREAD)
    while True:
        message = connection.recv()
        if isinstance(message, int):
            groups.meet(message)
            connection.send(None)
            continue
        number, job = message
        environment.renew(**places(setup, local_rank, job.world_size))
        report = run_example(number, job, setup.rank, groups, shared)
        connection.send(replace(report, left=(*report.left, *of_this_thread.restore())))
        progress.note_progress(0)  # a rank that takes long over the next job has launched nothing of it


def run_example(number: int, job: Job, rank: int, groups: "Groups", shared: Any) -> RankReport:
    """One rank's part in an example, in a default group of its own. ``shared``: the store of all ranks."""
    import torch.distributed as dist

    from lockstep.worlds.fresh import seed
    from lockstep.worlds.settings import imported, surroundings

    process_id = os.getpid()
    result, error = None, None
    groups.begin(job.contents, job.timeline)
    seed(rank)
    leftovers, found = Leftovers(), surroundings()
    try:
        function = imported(job.function)
        store = dist.PrefixStore(f"example {number}", shared)
        dist.init_process_group(groups.backend, store=store, rank=rank, world_size=job.world_size)
        result = function(job.payload, rank, job.world_size)
    except BaseException as exception:  # SystemExit too: a rank that exits is a finding
        error = raised(exception)
        # What C++ has passed on may be another exception, of the same words.
        if lacking := next((words for words in groups.lacking if words in error.message), ""):
            error = replace(error, kind="not runnable", message=lacking)
    finally:
        end_if_forked(process_id, error)
        if len(groups.made) > 1:
            await_members(dist.PrefixStore(f"end of {number}", shared), groups.made[1:])
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = sys.__excepthook__  # each init_process_group wraps the last one's
    left = [*leftovers.list(), *found.restore()]
    if error is None:  # else it is told already
        left += [f"a connection on which {operation} has failed" for operation in sorted(groups.failed)]
        left += ["a message that nobody has waited for"] * (groups.unawaited > 0)
    return RankReport(result, error, tuple(groups.timeline), tuple(left), tuple(groups.passages or ()))


def places(setup: Setup, local_rank: int, size: int) -> dict[str, str]:
    """The variables by which torchrun tells a rank its place. torchrun has told the number of ranks on each host."""
    told = {"RANK": str(setup.rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(size)}
    return told | ({"LOCAL_WORLD_SIZE": str(size)} if setup.local_rank is None else {})


def await_members(store: Any, groups: Sequence[tuple[str, int]]) -> None:
    """Returns when all members of these groups have come here, or some do not come: who is done first must not close a
    group to which another still connects.
    """
    deadline = time.monotonic() + CONNECTS
    for label, _ in groups:
        store.add(label, 1)
    for label, size in groups:
        while store.add(label, 0) < size and time.monotonic() < deadline:
            time.sleep(0.001)


def open_store(address: str) -> Any:
    """The store in which ranks find each other. See `Setup`."""
    import torch.distributed as dist

    kind, _, rest = address.partition(":")
    if kind == "file":
        return dist.FileStore(rest, -1)
    host, port, prefix = rest.rsplit(":", 2)
    return dist.PrefixStore(prefix, dist.TCPStore(host, int(port), is_master=False))
