"""Synchronizers that do not leave a rank's random numbers alone (P16)."""

import random
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.zero1 import Zero1

GO_ON = "test_random_numbers_go_on_where_the_caller_left_them"


class SeedsAllRanksAlike(NaiveAccumulation):
    """Makes sure that what is initialized here is the same everywhere."""

    known_fault = "after wrapping all ranks drop out the same elements"
    source = "recipe: torch.manual_seed in a constructor, https://github.com/ecmwf/anemoi-core/issues/595"
    killed_by = (GO_ON,)

    def __init__(self, module: nn.Module) -> None:
        torch.manual_seed(0)
        super().__init__(module)


class GivesAllRankZerosState(NaiveAccumulation):
    """Hands on the state of rank 0's generator with the parameters."""

    known_fault = "ranks go on with the random numbers of rank 0"
    source = "M06 V https://github.com/pytorch/pytorch/pull/141223"
    killed_by = (GO_ON,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        state = torch.get_rng_state()
        dist.broadcast(state, src=0)
        torch.set_rng_state(state)


class AgreesInEveryStep(NaiveAccumulation):
    """Brings Python's generators together with every synchronization, so that batches are shuffled alike."""

    known_fault = "after each synchronization ranks augment their data alike"
    source = "M07 V https://github.com/huggingface/accelerate/issues/114"
    killed_by = (GO_ON,)

    def finish_gradient_synchronization(self) -> None:
        """Averages, and then agrees on a seed."""
        super().finish_gradient_synchronization()
        if self.synchronize:
            seed = torch.tensor(random.getrandbits(31))
            dist.broadcast(seed, src=0)
            random.seed(seed.item())


class DrawsAName(NaiveAccumulation):
    """Numbers its instances at random."""

    known_fault = "a run with the wrapper draws other numbers than one without"
    source = "recipe: a number drawn from the caller's generator"
    killed_by = (GO_ON,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.name = f"wrapper {random.randrange(1000)}"


class GoesOnWithRankZerosNumbers(Zero1):
    """Keeps Python's generator in its checkpoint, and hands what rank 0 has read of it to all ranks."""

    known_fault = "after loading, all ranks augment their data as rank 0 does"
    source = "M08 D https://github.com/NVIDIA/Megatron-LM/issues/6858"
    killed_by = (GO_ON,)

    def load_full(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """See `properties.sharded.Sharded`."""
        super().load_full(parameters, optimizer_state)
        version, words, gauss = random.getstate()
        sent = torch.tensor(words)
        dist.broadcast(sent, src=0)
        random.setstate((version, tuple(sent.tolist()), gauss))


class SharesOutByChance(NaiveAccumulation):
    """Draws a number in each evaluation, as for a sample of what is logged."""

    known_fault = "an evaluation draws from the generator that training goes on with"
    source = "recipe: a random number in a forward without autograd"
    killed_by = (GO_ON,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if not torch.is_grad_enabled():
            self.part = torch.rand(())
        return super().forward(*inputs, **named)
