"""What the process of one rank does: it joins a group of its backend once, and runs one example after the other.

An example gets a fresh default group in `torch.distributed` that records each collective and hands it to the kept one:
a new connection for every example would take longer than the example.
"""

import datetime
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from worlds import devices, process
from worlds.contract import DEFAULT, MESSAGES, Collective, RankReport, group_label, raised, resolve
from worlds.family import Leftovers, end_if_forked

CONNECTS = 5.0  # seconds that the members of a group are given to meet when their example ends


@dataclass(frozen=True)
class Setup:
    """What a rank is told when it starts.

    ``store``: where ranks meet, "file:path" or "tcp:host:port:prefix". ``local_rank``: among the ranks of its host,
    None where all are on one. ``limit``: seconds after which the supervisor ends an example. ``hosts_apart``: NCCL is
    told that each rank is a host of its own, so that several may share a GPU.
    """

    backend: str
    device: str = "cpu"
    rank: int = 0
    local_rank: int | None = None
    store: str = ""
    limit: float = 30.0
    hosts_apart: bool = False


def serve(connection: Connection, setup: Setup) -> None:
    """One rank's process: a job in, a report out. torch is imported here only, not in the supervisor.

    In place of a job, a world size: the ranks are to meet in a group of it, and None comes back when they have.
    """
    import torch
    import torch.distributed as dist

    from worlds.collectives import DescribedGroup, Tensors, flatten, to_numpy
    from worlds.fresh import Environment, seed
    from worlds.settings import OF_A_THREAD, Surroundings, importing, surroundings
    from worlds.stand_in import stand_in

    if setup.hosts_apart:
        os.environ["NCCL_HOSTID"] = f"lockstep-{os.getpid()}"
    if setup.device == "cuda":  # the same bits in every run of an example
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
    local_rank = setup.rank if setup.local_rank is None else setup.local_rank
    devices.settle(setup.device, local_rank)
    torch.set_num_threads(1)
    shared = open_store(setup.store)
    # The supervisor's clock decides what hangs, not the backend's.
    patience = datetime.timedelta(seconds=10 * setup.limit)
    kind = getattr(dist.ProcessGroup.BackendType, setup.backend.upper())
    kept: dict[int, Any] = {}  # world size -> the backend's group of that many ranks
    timeline: list[Collective] = []
    contents = False
    made: list[tuple[str, int]] = []  # label and size of the groups of this example, the default one first
    process_id = os.getpid()

    class RealGroup(DescribedGroup):
        """Records what it is asked for and lets the backend do it."""

        def __init__(self, rank: int, members: tuple[int, ...], label: str, real: Any) -> None:
            super().__init__(rank, members, label)
            self._real = real
            self._issued = 0  # collectives so far
            # C++ code that asks a group for its backend (DDP's logger) must find it.
            for device in backend_devices(setup.backend):
                self._register_backend(torch.device(device), kind, real)

        def getBackendName(self) -> str:  # noqa: N802, c10d's name
            return setup.backend

        @property
        def _device_types(self) -> list[torch.device]:
            return [torch.device(backend_devices(setup.backend)[0])]

        def shutdown(self) -> None:
            # What c10d does to every group that it forgets; the default group is kept for the next example.
            if self.label != DEFAULT:
                super().shutdown()

        def recorded(self) -> int:
            return len(timeline)

        def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Callable[[Any], Any]) -> dist.Work:
            sent = to_numpy(flatten(inputs)) if contents else None
            timeline.append(replace(call, sent=sent))
            process.note_progress(len(timeline), self.label, self._issued, str(call))
            self._issued += call.operation not in MESSAGES
            work: dist.Work = again(self._real)
            return work

        def exchange(self, call: Collective, tensors: Tensors, again: Callable[[Any], Any]) -> dist.Work:
            return self.launch(call, tensors if call.operation == "send" else [], tensors, again)

    def connect(store: Any, rank: int, size: int) -> Any:
        if setup.backend == "gloo":
            return dist.ProcessGroupGloo(store, rank, size, patience)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = patience
        return dist.ProcessGroupNCCL(store, rank, size, options)

    def create(options: Any, _: Any) -> DescribedGroup:
        rank, size = options.group_rank, options.group_size
        if not made:
            made.append((DEFAULT, size))
            return RealGroup(rank, tuple(range(size)), DEFAULT, kept[size])
        members = tuple(options.global_ranks_in_group) or tuple(range(size))  # none: the default group once more
        label = group_label(members, options.group_id)
        made.append((label, size))
        return RealGroup(rank, members, label, connect(options.store, rank, size))

    name = f"lockstep_{setup.backend}"
    dist.Backend.register_backend(name, create, extended_api=True, devices=backend_devices(setup.backend))
    stand_in(name, shown=setup.backend)
    environment, of_this_thread = Environment(), Surroundings(OF_A_THREAD)
    while True:
        message = connection.recv()
        if isinstance(message, int):
            kept[message] = connect(dist.PrefixStore(f"world of {message}", shared), setup.rank, message)
            connection.send(None)
            continue
        number, job = message
        timeline, contents, made = [], job.contents, []
        environment.renew(**places(setup, local_rank, job.world_size))
        result, error = None, None
        seed(setup.rank)
        leftovers, found = Leftovers(), surroundings()
        try:
            with importing():
                function = resolve(job.function)
            store = dist.PrefixStore(f"example {number}", shared)
            dist.init_process_group(name, store=store, rank=setup.rank, world_size=job.world_size)
            result = function(job.payload, setup.rank, job.world_size)
        except BaseException as exception:  # SystemExit too: a rank that exits is a finding
            error = raised(exception)
        finally:
            end_if_forked(process_id, error)
            if len(made) > 1:
                await_members(dist.PrefixStore(f"end of {number}", shared), made[1:])
            if dist.is_initialized():
                dist.destroy_process_group()
            sys.excepthook = sys.__excepthook__  # each init_process_group wraps the last one's
        left = (*leftovers.list(), *found.restore(), *of_this_thread.restore())
        connection.send(RankReport(result, error, tuple(timeline), left))
        process.note_progress(0)  # a rank that takes long over the next job has launched nothing of it


def places(setup: Setup, local_rank: int, size: int) -> dict[str, str]:
    """What torchrun tells a rank of its place; of several hosts, how many ranks each has is what torchrun has told."""
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


def backend_devices(backend: str) -> list[str]:
    """The kinds of tensor that a backend carries."""
    import torch

    if backend == "nccl":
        return ["cuda"]
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def open_store(address: str) -> Any:
    """The store in which ranks find each other. See `Setup`."""
    import torch.distributed as dist

    kind, _, rest = address.partition(":")
    if kind == "file":
        return dist.FileStore(rest, -1)
    host, port, prefix = rest.rsplit(":", 2)
    return dist.PrefixStore(prefix, dist.TCPStore(host, int(port), is_master=False))
