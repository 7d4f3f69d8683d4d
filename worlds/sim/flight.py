"""A collective or message in flight on one rank: the moments at which it reads and writes, and its tensors."""

from typing import TYPE_CHECKING

import torch

from lockstep.worlds.contract import MESSAGES, Asynchrony, Collective
from lockstep.worlds.described_group import Tensors, flatten
from lockstep.worlds.sim.meeting import Flat, Meeting
from lockstep.worlds.sim.region import Memory, Region, regions
from lockstep.worlds.sim.work import write

if TYPE_CHECKING:
    from lockstep.worlds.sim.watch import Watch


class Flight:
    """From the launch until the rank knows that the collective is done.

    ``part``: its key in the meeting; ``place``: see `Collective.numbered`; ``sent``: a copy of the inputs.
    """

    def __init__(
        self,
        watch: "Watch",
        meeting: Meeting,
        part: int,
        place: int,
        call: Collective,
        tensors: tuple[Tensors, Tensors],
        sent: Flat,
    ) -> None:
        self.watch, self.call, self.place = watch, call, place
        self._meeting, self._part, self._sent = meeting, part, sent
        self._inputs, self._outputs = tensors
        if call.operation == "broadcast":  # which c10d hands over as input and output of everybody
            self._inputs, self._outputs = (self._inputs, []) if watch.rank == call.root else ([], self._outputs)
        self.read_regions, self.written_regions = regions(self._inputs), regions(self._outputs)
        self.launched = watch.line()
        self._reads_late, self._moments_left = _choices(watch.asynchrony, watch)
        self._written = self._lost = False
        self.finished = False
        self.reported: set[str] = set()  # of `HAZARDS`
        watch.launch(self)
        self._poison(tensors[0])
        self._seen = self._bits()

    def _poison(self, inputs: Tensors) -> None:
        if self._outputs is not self._inputs:
            for output in self._outputs:
                output.data.fill_(_poison_for(output.dtype))
            if self._inputs:  # parts of the outputs, perhaps
                write(self._sent, inputs)

    def read(self) -> Flat:
        """Read this rank's input: all members are there."""
        self.check()
        return flatten(self._inputs) if self._reads_late and self._inputs else self._sent

    def moment(self) -> None:
        """The outputs may be written now; the choice made at the launch decides."""
        if self._moments_left and self._meeting.results is not None:
            self._moments_left -= 1
            if not self._moments_left:
                self._write()

    def _write(self) -> None:
        self.check()
        self._written = True
        result = None if self._meeting.results is None else self._meeting.results[self._part]
        if result is not None:
            write(result, self._outputs)
        self._seen = self._bits()

    def finish(self) -> None:
        """The rank knows now."""
        if not self._written:
            self._write()
        else:
            self.check()
        self.finished = True
        self.watch.land(self)

    def drop(self) -> None:
        """Nobody holds the handle any more."""
        if not self.finished and not self._meeting.mismatch and (self._inputs or self._outputs):
            self._lost = self.call.operation in MESSAGES and not self._meeting.over
            self.watch.drop(self)

    def missed(self) -> bool:
        """True if somebody else holds the memory that it writes (or reads, if it writes none), or it is a message whose
        other end was not there yet: gloo forgets that one with its handle.
        """
        inputs, outputs = [Memory(tensor) for tensor in self._inputs], [Memory(tensor) for tensor in self._outputs]
        self._inputs, self._outputs, self.read_regions, self.written_regions = [], [], [], []
        gone = not any(memory.held() for memory in outputs or inputs)
        self._reads_late = self._reads_late and all(memory.held() for memory in inputs)
        self._inputs, self._outputs = [each.tensor() for each in inputs], [each.tensor() for each in outputs]
        self.read_regions, self.written_regions = regions(self._inputs), regions(self._outputs)
        self._seen = self._bits()
        return self._lost or not gone

    def check(self) -> None:
        """Reports tensors that hold something else than they did: whoever changed them went past torch's operations."""
        if any(not torch.equal(bits, seen) for bits, seen in zip(self._bits(), self._seen, strict=True)):
            self.watch.report("changed", self, "what torch does not dispatch")

    def _bits(self) -> list[torch.Tensor]:
        seen = (tensor for tensor in (*self._inputs, *self._outputs) if tensor.numel() and not tensor.is_sparse)
        return [flatten([tensor]).view(torch.uint8) for tensor in seen]

    def reads(self, region: Region) -> bool:
        """True if it reads any of this memory."""
        return any(region.overlaps(mine) for mine in self.read_regions)

    def writes(self, region: Region) -> bool:
        """True if it writes any of this memory."""
        return any(region.overlaps(mine) for mine in self.written_regions)


def _choices(asynchrony: Asynchrony, watch: "Watch") -> tuple[bool, int]:
    """The choice to read at completion, and the moment to write; 0: when the rank waits."""
    late = next(watch.draws) % 2 == 1 if asynchrony.reads == "drawn" else asynchrony.reads == "completion"
    moment = next(watch.draws) if asynchrony.writes == "drawn" else int(asynchrony.writes == "completion")
    return late, moment


def _poison_for(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else int.from_bytes(b"\x5a" * dtype.itemsize, "big")
