"""Right values, with one rank or one moment at which more is held than the slices that are claimed."""

from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.shards import Flat, Reduction
from lockstep.impls.twins.sharding import LateZero2, WholeParameterZero1
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero2 import Zero2
from lockstep.impls.zero3 import Zero3

BYTE = ("test_each_rank_holds_its_slices_to_the_byte",)
IN_USE = ("test_only_what_is_in_use_is_whole",)


class DealsOutWholeParameters(WholeParameterZero1):
    """All ranks together hold one copy, and the largest parameter is one rank's."""

    claims = Zero1.claims
    known_fault = "parameters are dealt out whole, where equal slices of them are claimed"
    source = "recipe"
    killed_by = BYTE


class _Padded(Reduction):
    def wait(self) -> torch.Tensor:
        super().wait()
        return self._sum[: sum(self.flat.counts)]


class _KeptPadded(Flat):
    reduction = _Padded


class KeepsPadding(Zero3):
    """A slice of a gradient is a view of what was received."""

    known_fault = "slices of gradients keep the padding with which they traveled"
    source = "recipe"
    killed_by = BYTE
    cut = _KeptPadded


class RankZeroKeepsACopy(Zero2):
    """Rank 0 keeps the slices that it had last, to be written to a file some time."""

    known_fault = "rank 0 keeps a copy of its slices of gradients"
    source = "recipe"
    killed_by = BYTE

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if dist.get_rank() == 0:
            self._copies = [mean.clone() for mean in self.means.values()]


class GathersAllAtOnce(Zero3):
    """Every unit is gathered before the first runs forward."""

    known_fault = "all units are gathered before forward, and freed after it"
    source = "recipe"
    killed_by = IN_USE

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with torch.no_grad():
            self._gather(self.flats)
        loss = super().forward(*inputs, **named)
        self._release(self.flats)
        return loss


class FreesAfterForward(Zero3):
    """Units are gathered one by one, and are freed together."""

    known_fault = "units stay gathered to the end of forward"
    source = "recipe"
    killed_by = IN_USE
    _late: list[list[Flat]] | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._late = []
        loss = super().forward(*inputs, **named)
        self._free_together()
        return loss

    def _free_together(self) -> None:
        late, self._late = self._late or [], None
        for flats in late:
            self._release(flats)

    def _release(self, flats: list[Flat]) -> None:
        if self._late is None:
            super()._release(flats)
        else:
            self._late.append(flats)


class FreesAfterBackward(FreesAfterForward):
    """The same in backward."""

    known_fault = "units stay gathered to the end of backward"

    def forward(self, *inputs: Any, **named: Any) -> Any:
        loss = Zero3.forward(self, *inputs, **named)
        self._late = []
        return loss

    def _after_backward(self) -> None:
        super()._after_backward()
        self._free_together()


class GradientsWaitForTheLast(LateZero2):
    """Reduces when backward is over: until then every gradient is whole."""

    claims = Zero2.claims
    known_fault = "no gradient is freed before backward is over"
    source = "recipe"
    killed_by = IN_USE
