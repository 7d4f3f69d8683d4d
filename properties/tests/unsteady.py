"""Implementations whose results depend on chance, on whether each rank has a process of its own, on the order in which
a backend adds, or on what it looks at. A process imports it for every example that has one of its own, so it imports
little itself.
"""

import functools
import os
import time
from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.naive import NaiveDataParallel


def _spoil(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad += 1


def _in_processes_of_their_own() -> bool:
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    return any(pid != pids[0] for pid in pids)


class WrongByChance(NaiveDataParallel):
    """Each synchronization is wrong on some rank with probability 1/3, and nothing that a seed sets decides it."""

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if os.urandom(1)[0] < 85:
            _spoil(self)


class InTheOrderOfASetOfNames(NaiveDataParallel):
    """Adds up all gradients in one tensor, in an order that depends on the hashes of names: Python has others in each
    process. NVIDIA/Megatron-LM#2218 and huggingface/transformers#48162 are of this kind.
    """

    def finish_gradient_synchronization(self) -> None:
        named = {name: each for name, each in self.module.named_parameters() if each.grad is not None}
        gradients = [named[name].grad for name in set(named)]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, total in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient) / dist.get_world_size())


class WrongInProcessesOfTheirOwn(NaiveDataParallel):
    """Wrong wherever ranks are processes: never on the simulated world."""

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if _in_processes_of_their_own():
            _spoil(self)


class WrongInSomeOrdersOfReduction(NaiveDataParallel):
    """Gets 0 from 2^25 on the first rank, 1 on the second and -2^25 on the last, where a backend adds from either end:
    2^25 + 1 is 2^25 in float32. Where the two large numbers meet first, it gets 1.
    """

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        total = torch.tensor([{0: 2.0**25, 1: 1.0, ranks - 1: -(2.0**25)}.get(rank, 0.0)])
        dist.all_reduce(total)
        if ranks > 2 and total:
            _spoil(self)


class WrongOrCrashing(NaiveDataParallel):
    """Wrong on the simulated world, raises on processes."""

    error: Exception = KeyError("lost")

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if _in_processes_of_their_own():
            raise self.error
        _spoil(self)


class WrongOrRefusing(WrongOrCrashing):
    """The same, on purpose."""

    error = ValueError("not in processes of their own")


class DisagreesOnWhatNobodyReads(NaiveDataParallel):
    """Asks for the sum on rank 0 and for the maximum elsewhere, where gloo looks at neither."""

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        dist.all_reduce(torch.zeros(1), dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)


class WithStateOfTheClass(NaiveDataParallel):
    """Right wherever each rank is a process: what it keeps in its class is one rank's there."""

    owner: object = None

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        WithStateOfTheClass.owner = self

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if WithStateOfTheClass.owner is not self:
            _spoil(self)


class RightSixTimesInAProcess(NaiveDataParallel):
    """Right for the first six modules that a process wraps, of which a program that saves and loads has several."""

    wrapped = 0

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        RightSixTimesInAProcess.wrapped += 1
        self.place = RightSixTimesInAProcess.wrapped

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if self.place > 6:
            _spoil(self)


@functools.lru_cache
def group_of(ranks: tuple[int, ...]) -> Any:
    """One for the whole process, as fairscale's `get_process_group_cached` makes them."""
    return dist.new_group(list(ranks))


class WithACachedGroup(NaiveDataParallel):
    """Right once in a process that has one rank; torch refuses the group of another rank, or of an earlier example."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.group = group_of(tuple(range(dist.get_world_size())))
        dist.broadcast(torch.zeros(1), 0, group=self.group)


class WithStateOfTheClassAndSlow(WithStateOfTheClass):
    """Right wherever each rank is a process, and slow there the first time."""

    warm = False

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if not WithStateOfTheClassAndSlow.warm and _in_processes_of_their_own():
            WithStateOfTheClassAndSlow.warm = True
            time.sleep(LATE)


class ForOneRank(NaiveDataParallel):
    """Refuses to synchronize two."""

    def finish_gradient_synchronization(self) -> None:
        if dist.get_world_size() > 1:
            raise ValueError(f"one rank, not {dist.get_world_size()}")


class ForSeveralRanks(NaiveDataParallel):
    """Refuses to be alone."""

    def finish_gradient_synchronization(self) -> None:
        if dist.get_world_size() == 1:
            raise ValueError("several ranks, not one")
        super().finish_gradient_synchronization()


class CrashesAndSlow(NaiveDataParallel):
    """Raises on every rank, on processes of their own after some time."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        if _in_processes_of_their_own():
            time.sleep(SLOW)

    def finish_gradient_synchronization(self) -> None:
        raise KeyError("lost")


LATE = 1.5  # seconds, beyond the patience that the test gives to confirming a failure
SLOW = 1.0  # seconds; half of it is enough for an example on sim, also on a busy machine


class NeverEnds(NaiveDataParallel):
    """Sleeps."""

    def finish_gradient_synchronization(self) -> None:
        time.sleep(1000)
