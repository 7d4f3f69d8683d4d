"""Synchronizers whose ranks do not say the same things in the same order (P4, P5)."""

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.hook_order_buckets import HookOrderBuckets
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import StaticBuckets

SAME_COLLECTIVES = "test_every_rank_issues_the_same_collectives"
IN_STEP = "test_an_error_on_some_ranks_leaves_all_in_step"
HOOK_ORDER = "test_the_result_does_not_depend_on_the_order_in_which_hooks_fire"
RELABELED = "test_it_does_not_matter_which_rank_holds_which_samples"
MEAN = "test_gradients_equal_the_mean_over_ranks"
REPLICAS = "test_replicas_are_bitwise_equal_after_construction_and_after_every_step"


class BucketsInReadyOrder(HookOrderBuckets):
    """As `impls.hook_order_buckets`, one parameter to a bucket."""

    known_fault = "buckets go out in the order in which they are ready on a rank"
    source = "D01 V https://github.com/NVIDIA/Megatron-LM/pull/2218"
    killed_by = (MEAN, HOOK_ORDER)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, bucket_cap_mb=0)


class KeepsParametersInASet(NaiveAccumulation):
    """Reduces in the order in which a set gives its members, another one in each process."""

    known_fault = "parameters are reduced in the order of a set, which differs from rank to rank"
    source = "D01 V https://github.com/NVIDIA/Megatron-LM/pull/2218"
    killed_by = (MEAN, SAME_COLLECTIVES, IN_STEP, HOOK_ORDER, RELABELED)

    def finish_gradient_synchronization(self) -> None:
        """The rank stands for what seeds the hashes of a process."""
        parameters = self.trained
        start = dist.get_rank() % max(len(parameters), 1)
        for parameter in parameters[start:] + parameters[:start]:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


class SynchronizesEverySecondTime(NaiveAccumulation):
    """Is used only sometimes: every second synchronization is left out."""

    known_fault = "the second synchronization, the fourth and so on do not take place"
    source = "L05 V https://github.com/OrderLab/TrainCheck-Evaluation-Workloads"
    killed_by = (MEAN, REPLICAS, "test_zeroed_gradients_do_not_come_back")

    _done = 0

    def finish_gradient_synchronization(self) -> None:
        """Right in the first step."""
        self._done += 1
        if self._done % 2:
            super().finish_gradient_synchronization()


class OneRankSaysMore(StaticBuckets):
    """The last rank logs, and meets the others to do it; nobody else comes."""

    known_fault = "a collective inside a branch that only one rank takes"
    source = "recipe: C07, C12, local control flow around a collective"
    killed_by = (SAME_COLLECTIVES, IN_STEP)

    def finish_gradient_synchronization(self) -> None:
        """Launches one more all-reduce there, and waits for nothing."""
        super().finish_gradient_synchronization()
        if 0 < dist.get_rank() == dist.get_world_size() - 1:
            dist.all_reduce(self._buckets[0].flags.clone(), async_op=True)


class OneMemberSaysMore(NaiveAccumulation):
    """Rank 0 logs in a group with rank 1, and the other member of it does not: the default group hears nothing."""

    known_fault = "a collective of a subgroup that only one of its members launches"
    source = "recipe: C07, C12, local control flow around a collective"
    killed_by = (SAME_COLLECTIVES, IN_STEP)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.pair = dist.new_group([0, 1]) if dist.get_world_size() > 1 else None
        self.told: list[object] = []

    def finish_gradient_synchronization(self) -> None:
        """Launches one more all-reduce there, and waits for nothing."""
        super().finish_gradient_synchronization()
        if self.pair is not None and dist.get_rank() == 0:
            flag = torch.ones(1)
            self.told += [flag, dist.all_reduce(flag, group=self.pair, async_op=True)]


class SendsToNobody(NaiveAccumulation):
    """Rank 0 tells rank 1 something that rank 1 does not ask for."""

    known_fault = "a message is sent that nobody receives"
    source = "recipe: a send whose receive was forgotten"
    killed_by = (SAME_COLLECTIVES, IN_STEP)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.told: list[object] = []

    def finish_gradient_synchronization(self) -> None:
        """Sends it, and waits for nothing."""
        super().finish_gradient_synchronization()
        if dist.get_rank() == 0 and dist.get_world_size() > 1:
            flag = torch.ones(1)
            self.told += [flag, dist.isend(flag, 1)]
