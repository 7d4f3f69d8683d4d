"""Faults that the tests of other projects let through: each passes the check in its ``source``, and fails a law here.

The checks are told in `properties/tests/peers_checks.py`, in own words, with which were read and which measured.
"""

from typing import Any

import torch
import torch.distributed as dist

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.sharded_optimizer import ShardedOptimizer
from lockstep.impls.zero1 import Zero1

MEAN = "test_gradients_equal_the_mean_over_ranks"
ACCUMULATION = "test_no_sync_accumulates_and_then_counts_once"
REPLICAS = "test_replicas_are_bitwise_equal_after_construction_and_after_every_step"
STEPS = "test_every_step_leaves_the_parameters_and_state_of_one_process"
SHARDED_STEPS = "test_steps_of_shards_are_steps_of_the_whole"
REAL_MEAN = "test_a_real_model_gets_the_mean_gradient_of_the_whole_batch"
REAL_REPLICAS = "test_replicas_of_a_real_model_stay_bitwise_equal"


class _Afterwards(NaiveAccumulation):
    """The mean over ranks, and then something is done to it."""

    def finish_gradient_synchronization(self) -> None:
        """Averages, unless inside `no_sync`, and spoils every gradient."""
        super().finish_gradient_synchronization()
        for parameter in self.trained:
            if parameter.grad is not None and self.synchronize:
                self.spoil(parameter.grad)

    def spoil(self, gradient: torch.Tensor) -> None:
        """Spoil a gradient."""
        raise NotImplementedError


class NeverReduces(NaiveAccumulation):
    """Ranks begin alike, and each goes on by itself."""

    known_fault = "nothing is ever reduced"
    source = (
        "PyTorch distributed_test.py test_different_graph_across_ranks, test_skip_all_reduce_unused_parameters, "
        "test_static_graph_multi_forward; fairscale test_ddp_parity; DeepSpeed v1/compile/util.py compare_loss"
    )
    killed_by = (MEAN, REPLICAS, REAL_MEAN, REAL_REPLICAS)

    def finish_gradient_synchronization(self) -> None:
        """Nothing."""


class ShiftsByOne(_Afterwards):
    """Writes the reduced values back one element further."""

    known_fault = "an offset is wrong by one: every gradient is shifted"
    source = "Megatron-LM test_grad_sync: a gradient of ones, and one element looked at"
    killed_by = (MEAN, REAL_MEAN)

    def spoil(self, gradient: torch.Tensor) -> None:
        """The last element comes first."""
        gradient.copy_(gradient.reshape(-1).roll(1).view_as(gradient))


class Negates(_Afterwards):
    """The mean with the wrong sign."""

    known_fault = "gradients have the wrong sign"
    source = (
        "PyTorch test_c10d_common.py test_multiple_outputs_multiple_backward and others that assert nothing; "
        "test_zero_redundancy_optimizer.py test_lr_scheduler; DeepSpeed compare_loss"
    )
    killed_by = (MEAN, REAL_MEAN)

    def spoil(self, gradient: torch.Tensor) -> None:
        """The other sign."""
        gradient.neg_()


class KeepsTheLastMicrobatch(NaiveAccumulation):
    """A synchronizing forward begins with no gradient, as if it were the first."""

    known_fault = "what was accumulated under no_sync is dropped"
    source = "DeepSpeed test_no_sync_ctxt: two runs under no_sync, compared with each other"
    killed_by = (MEAN, ACCUMULATION, REAL_MEAN)

    def forward(self, *inputs: object, **named: object) -> torch.Tensor:
        """Clears first where this backward synchronizes."""
        if self.synchronize:
            self.module.zero_grad()
        result: torch.Tensor = super().forward(*inputs, **named)
        return result


class OnlyRankZero(NaiveAccumulation):
    """Reduces to rank 0, and leaves the others what they have."""

    known_fault = "rank 0 alone gets the mean"
    source = "CS336 assignment 2, tests of DDP: only rank 0 is compared with the baseline"
    killed_by = (MEAN, REPLICAS, REAL_MEAN, REAL_REPLICAS)

    def finish_gradient_synchronization(self) -> None:
        """To rank 0."""
        for parameter in self.trained:
            if parameter.grad is not None and self.synchronize:
                total = parameter.grad.clone()
                dist.reduce(total, 0)
                if dist.get_rank() == 0:
                    parameter.grad.copy_(total / dist.get_world_size())


class Sums(_Afterwards):
    """The sum where the mean is due."""

    known_fault = "gradients are the sum over ranks"
    source = (
        "PyTorch FSDP2 _test_train_parity_single_group and test_zero_redundancy_optimizer.py "
        "test_local_optimizer_parity, both under Adam; DeepSpeed compare_loss"
    )
    killed_by = (MEAN, REAL_MEAN)

    def spoil(self, gradient: torch.Tensor) -> None:
        """Undoes the division."""
        gradient *= dist.get_world_size()


class Halves(_Afterwards):
    """Half of the mean."""

    known_fault = "gradients are half of the mean"
    source = "PyTorch FSDP2 _test_train_parity_single_group: losses under Adam"
    killed_by = (MEAN, REAL_MEAN)

    def spoil(self, gradient: torch.Tensor) -> None:
        """A half."""
        gradient /= 2


class TimesAHundred(_Afterwards):
    """A hundred times the mean."""

    known_fault = "gradients are a hundred times the mean"
    source = "PyTorch FSDP2 _test_train_parity_single_group: losses under Adam"
    killed_by = (MEAN, REAL_MEAN)

    def spoil(self, gradient: torch.Tensor) -> None:
        """Times 100."""
        gradient *= 100


class Zeroes(_Afterwards):
    """No gradient at all."""

    known_fault = "gradients are zero after the reduction"
    source = "DeepSpeed v1/compile/util.py compare_loss: five steps move less than its tolerance"
    killed_by = (MEAN, REAL_MEAN)

    def spoil(self, gradient: torch.Tensor) -> None:
        """Zeros."""
        gradient.zero_()


class NeverSteps(Zero1):
    """Gradients are averaged, and that is all."""

    known_fault = "no step changes anything"
    source = "DeepSpeed v1/compile/util.py compare_loss: five steps move less than its tolerance"
    killed_by = (REAL_MEAN, STEPS, SHARDED_STEPS)

    def make_optimizer(self, *arguments: Any, **named: Any) -> ShardedOptimizer:
        """One whose step does nothing."""
        optimizer = super().make_optimizer(*arguments, **named)
        optimizer.step = _nothing
        return optimizer


def _nothing() -> None:
    """In the place of a step."""


class RandomGradient(_Afterwards):
    """Random numbers, the same on every rank."""

    known_fault = "gradients are random numbers"
    source = "DeepSpeed v1/compile/util.py compare_loss: five steps move less than its tolerance"
    killed_by = (MEAN, REAL_MEAN)

    def spoil(self, gradient: torch.Tensor) -> None:
        """From a seed of its own, so that the caller's random numbers stay as they are."""
        random = torch.Generator().manual_seed(gradient.numel())
        gradient.copy_(torch.randn(gradient.shape, generator=random).to(gradient))
