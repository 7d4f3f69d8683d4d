"""Wrong ways to go on when some ranks have run out of micro-batches (P1, P5)."""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.joined import Joined

COUNTS = "test_ranks_that_run_out_of_micro_batches_count_as_zero_in_the_mean_claimed"
TAKES_PART = "test_ranks_that_have_run_out_take_part_in_every_collective_of_the_others"


class DividesByThoseThatRemain(Joined):
    """Divides by the number of contributors, whatever it is asked for."""

    known_fault = "while ranks are gone, means divide by the number of those that remain, not by the world size"
    source = "recipe: the divisor must not depend on who has data"
    killed_by = (COUNTS,)

    def divisor(self) -> int:
        """Of those that came to the last forward."""
        return self._remaining if self._joining else dist.get_world_size()


class DividesByAll(Joined):
    """Divides by the world size, whatever it is asked for."""

    known_fault = "while ranks are gone, means divide by the world size, though asked for the mean of those that remain"
    source = "recipe: the option does not reach the reduction"
    killed_by = (COUNTS,)

    def divisor(self) -> int:
        """Of all."""
        return dist.get_world_size()


class SendsOldGradients(Joined):
    """Takes part in the others' reductions with the gradients that it has."""

    known_fault = "a rank that has run out counts with its last gradients again"
    source = "recipe: a buffer is sent that was not zeroed"
    killed_by = (COUNTS,)

    def shadow(self) -> None:
        """Sends a copy of what there is."""
        for parameter in self.trained:
            dist.all_reduce(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone())


class KeepsItsModel(Joined):
    """Does not make the ranks equal when all have run out."""

    known_fault = "a rank that has run out early never gets the steps of the others"
    source = "recipe: the final broadcast is missing"
    killed_by = (COUNTS,)

    def agree(self, candidate: int) -> None:
        """Leaves everything as it is."""


class TakesTheModelOfRankZero(Joined):
    """Makes the ranks equal as at the start."""

    known_fault = "in the end every rank gets rank 0's model, also where rank 0 ran out early"
    source = "recipe: the root is a constant"
    killed_by = (COUNTS,)

    def agree(self, candidate: int) -> None:
        """Only rank 0 is a candidate."""
        super().agree(0)


class TakesTheModelOfTheFirstWindow(Joined):
    """Finds out once who is to give its model."""

    known_fault = "at the end of a second join every rank gets the model of the rank that was last in the first"
    source = "recipe: what one window has found out is kept for the next"
    killed_by = (COUNTS,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._was_last: bool | None = None

    def agree(self, candidate: int) -> None:
        """Take the rank that was last once for the last always."""
        if self._was_last is None:
            self._was_last = candidate >= 0
        super().agree(dist.get_rank() if self._was_last else -1)


class DividesAsInTheFirstWindow(Joined):
    """Keeps how means divide from the first join on."""

    known_fault = "a second join divides as the first was asked to"
    source = "recipe: what one window was asked for is kept for the next"
    killed_by = (COUNTS,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._asked: bool | None = None

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size: bool = True) -> Iterator[None]:
        """Asked once."""
        if self._asked is None:
            self._asked = divide_by_initial_world_size
        with super().join(self._asked):
            yield


class LeavesForGood(Joined):
    """Has the context, and does nothing in it."""

    known_fault = "a rank that has run out takes part in nothing, and the others wait for it"
    source = "recipe: no join at all"
    killed_by = (TAKES_PART, COUNTS)

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size: bool = True) -> Iterator[None]:
        """Only the end is common."""
        yield
        self.agree(dist.get_rank())


class ReducesInEveryMicroBatch(Joined):
    """Takes part in a reduction for every micro-batch of the others, whether they reduce after it or not."""

    known_fault = "a rank that has run out reduces while the others accumulate inside no_sync"
    source = "B17 V https://github.com/pytorch/pytorch/pull/44427"
    killed_by = (TAKES_PART,)

    def meet(self, present: bool, reduces: bool) -> int:
        """Assume that every rank that is present reduces."""
        return super().meet(present, present)


class ReducesTheFirst(Joined):
    """Takes part in one reduction for each micro-batch, however many there are."""

    known_fault = "a rank that has run out takes part in the first reduction of each micro-batch alone"
    source = "recipe: one bucket is taken for all"
    killed_by = (TAKES_PART,)

    def shadow(self) -> None:
        """One parameter's."""
        for parameter in self.trained[:1]:
            dist.all_reduce(torch.zeros_like(parameter))
