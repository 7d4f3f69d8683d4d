"""The groups of one rank on a real backend: each collective is recorded and handed to the backend's own group.

An example's default group is a new one in `torch.distributed`, over a group of the backend's that is kept: a new
connection for every example would take longer than the example. So are the other groups where `Setup.keeps_groups`.
"""

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lockstep.worlds import progress
from lockstep.worlds.contract import DEFAULT, MESSAGES, Collective, Passage, group_label
from lockstep.worlds.described_group import DescribedGroup, Tensors, as_it_lies, flatten, in_numpy
from lockstep.worlds.stand_in import stand_in

KEPT = 2  # groups of the same members in one example whose connections are kept for the next


class Groups:
    """All groups of one rank. ``backend``: the name by which `init_process_group` makes them.

    Beside NCCL's groups there are gloo's, if a program asks `new_group` for them: programs exchange objects on the CPU
    so. The other attributes are about the running example:

        timeline     its collectives
        contents     the inputs of collectives are recorded
        passages     when they were launched and done; None: nobody asks
        made         label and size of its groups, the default one first
        failed       the operations that the backend has refused or given up
        unawaited    the number of messages to be received that nobody has waited for
        lacking      in words: the call that this backend does not have, which is not held against the rank
    """

    def __init__(self, backend: str, rank: int, store: Any, limit: float, keeps: bool = False) -> None:
        self.backend, self.real = f"lockstep_{backend}", backend
        self._rank, self._store = rank, store
        # The supervisor's clock decides what hangs, not the backend's.
        self._patience = datetime.timedelta(seconds=10 * limit)
        self._kept: dict[int, Any] = {}  # world size -> the backend's group of that many ranks
        self._keeps, self._others = keeps, dict[tuple[str, tuple[int, ...], int], Any]()
        self.begin(contents=False)
        both = {name: f"lockstep_{name}" for name in dict.fromkeys((backend, "gloo"))}
        for name, ours in both.items():
            create = partial(self._create, name)
            dist.Backend.register_backend(ours, create, extended_api=True, devices=_devices(name))
        stand_in(self.backend, backend, both)
        if backend == "nccl":
            launch_batches_as_one()

    def begin(self, contents: bool, timeline: bool = False) -> None:
        """Begin an example. ``timeline``: record when its collectives begin and end."""
        self.timeline: list[Collective] = []
        self.made: list[tuple[str, int]] = []
        self._made_of = Counter[tuple[str, tuple[int, ...]]]()
        self.failed: set[str] = set()
        self.unawaited = 0
        self.lacking: list[str] = []
        self.contents = contents
        self.passages: list[Passage] | None = [] if timeline else None

    def lacks(self, call: Collective, what: str) -> NotImplementedError:
        """The error for a call that the backend does not have."""
        self.lacking.append(f"{call}: {what}")
        return NotImplementedError(self.lacking[-1])

    def meet(self, size: int) -> None:
        """Connect with the others of a world of this size, once for all examples."""
        store = dist.PrefixStore(f"world of {size}", self._store)
        self._kept[size] = self._connect(self.real, store, self._rank, size)

    def note(self, group: "RecordedGroup", call: Collective, inputs: Tensors) -> None:
        """A rank launches a collective."""
        sent = in_numpy(flatten(as_it_lies(call, inputs))) if self.contents else None
        self.timeline.append(replace(call, sent=sent))
        progress.note_progress(len(self.timeline), group.label, group.issued, str(call))

    def time(self, group: "RecordedGroup", call: Collective, launched: int, work: dist.Work) -> None:
        """Notes when a collective was launched and, once it is, done."""
        if self.passages is None or call.operation in MESSAGES:
            return
        from lockstep.worlds.sim.log import on_a_ring  # only where somebody asks for a timeline

        passages, place = self.passages, len(self.passages)
        size = getattr(torch, call.dtype).itemsize if call.dtype else 0
        root = group.members.index(call.root) if call.root >= 0 else -1
        moved = on_a_ring(replace(call, root=root), group.member, len(group.members), size)
        passages.append(Passage(call, group.members, call.count * size, launched, None, None, *moved))

        def done(_: Any) -> None:
            passages[place] = replace(passages[place], completed=group.now())

        work.get_future().then(done)

    def _connect(self, real: str, store: Any, rank: int, size: int) -> dist.ProcessGroup:
        """A group as plain torch makes it: calls go through torch's dispatcher, which knows wrapped tensors, modes and
        profilers, to the backend, which would take any tensor's memory as it finds it.
        """
        kind, backend = self._kind_and_backend(real, store, rank, size)
        group = dist.ProcessGroup(store, rank, size)
        group._set_default_backend(kind)
        for device in _devices(real):
            group._register_backend(torch.device(device), kind, backend)
        return group

    def _kind_and_backend(self, real: str, store: Any, rank: int, size: int) -> tuple[Any, Any]:
        kinds = dist.ProcessGroup.BackendType
        if real == "gloo":
            return kinds.GLOO, dist.ProcessGroupGloo(store, rank, size, self._patience)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._patience
        return kinds.NCCL, dist.ProcessGroupNCCL(store, rank, size, options)

    def _create(self, real: str, options: Any, _: Any) -> DescribedGroup:
        rank, size = options.group_rank, options.group_size
        if not self.made:
            self.made.append((DEFAULT, size))
            return RecordedGroup(self, rank, tuple(range(size)), DEFAULT, real, self._kept[size])
        members = tuple(options.global_ranks_in_group) or tuple(range(size))  # none: the default group once more
        label = group_label(members, options.group_id)
        self.made.append((label, size))
        # Which of these members' groups of this example it is, on which they agree.
        number = self._made_of[real, members]
        self._made_of[real, members] += 1
        if not self._keeps or number >= KEPT:
            return RecordedGroup(self, rank, members, label, real, self._connect(real, options.store, rank, size))
        if (key := (real, members, number)) not in self._others:
            self._others[key] = self._connect(real, options.store, rank, size)
        return RecordedGroup(self, rank, members, label, real, self._others[key], kept=True)


class RecordedGroup(DescribedGroup):
    """A group that records each call and hands it to ``real``, the group of the backend called ``name``."""

    def __init__(
        self,
        groups: Groups,
        rank: int,
        members: tuple[int, ...],
        label: str,
        name: str,
        real: dist.ProcessGroup,
        kept: bool = False,
    ) -> None:
        super().__init__(rank, members, label)
        self._groups, self._name_of_backend, self._real = groups, name, real
        self._is_kept = kept or label == DEFAULT
        kind = getattr(dist.ProcessGroup.BackendType, name.upper())
        # C++ code that asks a group for its backend (DDP's logger) must find it.
        for device in map(torch.device, _devices(name)):
            self._register_backend(device, kind, real._get_backend(device))

    def getBackendName(self) -> str:  # noqa: N802, c10d's name
        """The real one."""
        return self._name_of_backend

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(_devices(self._name_of_backend)[0])]

    def shutdown(self) -> None:
        """Shut down as c10d does with every group that it forgets, but keep what the next example uses."""
        if not self._is_kept:
            super().shutdown()

    def recorded(self) -> int:
        """The number of collectives that the rank has launched in this example."""
        return len(self._groups.timeline)

    def launch(self, call: Collective, inputs: Tensors, outputs: Tensors, again: Callable[[Any], Any]) -> dist.Work:
        """Starts a collective on the backend. Raises NotImplementedError for one that it has not."""
        if self._name_of_backend == "nccl" and call.reduction.startswith("sparse"):
            raise self._groups.lacks(call, "NCCL has no all-reduce of sparse tensors")
        self._groups.note(self, call, inputs)
        self.issued += call.operation not in MESSAGES
        launched = self.now()
        try:
            work: dist.Work = again(self._real)
        except BaseException:  # as of a barrier whose time is over: the connection may be spoilt for whoever is next
            self._groups.failed.add(call.operation)
            raise
        self._groups.time(self, call, launched, work)
        return work

    def exchange(self, call: Collective, tensors: Tensors, again: Callable[[Any], Any]) -> dist.Work:
        """Starts a message. Raises NotImplementedError for one of a CUDA tensor on gloo."""
        ours = self._name_of_backend
        if ours == "gloo" and any(tensor.is_cuda for tensor in tensors):  # it hands their addresses to a socket
            raise self._groups.lacks(call, "gloo has no messages of CUDA tensors")
        work = self.launch(call, tensors if call.operation == "send" else [], tensors, again)
        return Receive(self._groups, work) if call.operation == "recv" and ours == "gloo" else work


class Receive(dist.Work):
    """gloo's handle of a message to be received, which records if somebody waits for it.

    gloo forgets a message with its handle. If both ends drop it, the next message on that connection may hang.
    """

    def __init__(self, groups: Groups, real: dist.Work) -> None:
        super().__init__()
        self._groups, self._real, self._awaited = groups, real, False
        groups.unawaited += 1

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Block until the message is there."""
        done = self._real.wait() if timeout is None else self._real.wait(timeout)
        self._groups.unawaited -= not self._awaited
        self._awaited = True
        return done

    def is_completed(self) -> bool:
        """gloo's own answer."""
        return self._real.is_completed()

    def _source_rank(self) -> int:
        return self._real._source_rank()

    source_rank = _source_rank


@cache
def launch_batches_as_one() -> None:
    """Launch batched sends and receives in one NCCL call; otherwise they wait for one another.

    torch up to 2.13 does so for groups of its own class alone.
    """
    usual = c10d.batch_isend_irecv

    def batch_isend_irecv(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
        c10d._check_p2p_op_list(p2p_op_list)
        group, device = p2p_op_list[0].group or dist.group.WORLD, p2p_op_list[0].tensor.device
        if not isinstance(group, RecordedGroup) or group.getBackendName() != "nccl":
            return usual(p2p_op_list)
        group._start_coalescing(device)
        for each in p2p_op_list:
            peer = {"group_dst" if each.op is dist.isend else "group_src": each.group_peer}
            each.op(each.tensor, group=each.group, tag=each.tag, **peer)
        return [group._end_coalescing(device)]

    c10d.batch_isend_irecv = dist.batch_isend_irecv = batch_isend_irecv


@cache
def _devices(backend: str) -> list[str]:
    """The kinds of tensor that a backend carries."""
    if backend == "nccl":
        return ["cuda"]
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
