"""Synchronizers that compare the models of ranks, and do not refuse all that differ on every rank (P5)."""

from typing import Any

import torch.distributed as dist
from torch import nn

from impls.naive import NaiveAccumulation

DIFFERING = ("test_models_that_differ_between_ranks_are_refused_on_every_rank",)


class ComparesHowMany(NaiveAccumulation):
    """Compares how many parameters there are."""

    known_fault = "models with as many parameters in another order, or of other shapes, pass"
    source = "D05 V https://github.com/pytorch/pytorch/issues/73547"
    claims = {**NaiveAccumulation.claims, "compares_models": True}
    killed_by = DIFFERING

    def __init__(self, module: nn.Module) -> None:
        mine = self.told(module)
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, mine)
        if any(each != told[0] for each in told):
            raise ValueError("the models of ranks differ")
        super().__init__(module)

    def told(self, module: nn.Module) -> Any:
        """What is compared."""
        return len(list(module.parameters()))


class ComparesShapes(ComparesHowMany):
    """Compares the shapes and dtypes of what is trained."""

    known_fault = "models whose parameters have other names in the same places pass"
    source = "recipe: shapes, without names"
    killed_by = DIFFERING

    def told(self, module: nn.Module) -> Any:
        """In the order in which they are registered."""
        return [(each.shape, each.dtype) for each in module.parameters() if each.requires_grad]


class TakesRankZerosForRight(NaiveAccumulation):
    """Compares with rank 0."""

    known_fault = "rank 0 hears of no difference, and waits for ranks that are gone"
    source = "D18 D https://github.com/pytorch/pytorch/issues/76449"
    claims = ComparesHowMany.claims
    killed_by = DIFFERING

    def __init__(self, module: nn.Module) -> None:
        mine = [(name, each.shape, each.dtype, each.requires_grad) for name, each in module.named_parameters()]
        told: list[Any] = [mine]
        dist.broadcast_object_list(told, src=0)
        if mine != told[0]:
            raise ValueError("this rank's model is not rank 0's")
        super().__init__(module)


class IgnoresWhatIsFrozen(ComparesHowMany):
    """Compares parameters as such."""

    known_fault = "models of which different parameters are trained pass"
    source = "recipe: parameters that some ranks leave out, https://github.com/pytorch/pytorch/issues/68803"
    killed_by = DIFFERING

    def told(self, module: nn.Module) -> Any:
        """With names."""
        return [(name, each.shape, each.dtype) for name, each in module.named_parameters()]
