"""Synchronizers that are right for some steps, and then no longer (P1)."""

import torch
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.twins.reductions import RingOfBuffers

OFTEN = ("test_the_mean_is_right_however_often_it_has_been_taken",)


class CountsWindows(NaiveAccumulation):
    """Averages depending on how many windows there have been."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._window = 0

    def is_due(self) -> bool:
        """True if this window is averaged."""
        raise NotImplementedError

    def finish_gradient_synchronization(self) -> None:
        """Averages where that is due."""
        if self.synchronize:
            self._window += 1
            if self.is_due():
                super().finish_gradient_synchronization()


class LocalAfterWarmUp(CountsWindows):
    """Local SGD, without the average of parameters that belongs to it."""

    known_fault = "after a warm-up of eight windows only every second is averaged"
    source = "recipe: torch's post-local SGD, whose averager the caller has to call"
    killed_by = OFTEN

    def is_due(self) -> bool:
        """Always at first, then every other time."""
        return self._window <= 8 or self._window % 2 == 0


class TakesNoughtForNone(CountsWindows):
    """Numbers windows in four bits, and takes the number 0 for no window."""

    known_fault = "every sixteenth window is not averaged"
    source = "recipe: a number that comes round to zero, and is asked whether it is there"
    killed_by = OFTEN

    def is_due(self) -> bool:
        """True if there is a number."""
        return bool(self._window % 16)


class RingIsNotCleared(RingOfBuffers):
    """Adds to a buffer, which was zero when it was made."""

    known_fault = "the mean of three windows ago is added once the buffers have all been used"
    source = "recipe: main gradients in a ring of buffers"
    killed_by = OFTEN

    def fill(self, buffer: torch.Tensor, gradient: torch.Tensor) -> None:
        """With what it has of its last use, too."""
        buffer += gradient
