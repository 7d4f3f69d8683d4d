"""Synchronizers that compare the models of ranks, and do not refuse all that differ on every rank (P5)."""

from typing import Any

import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.wrapper import broadcast_from_rank_zero

DIFFERING = ("test_models_that_differ_between_ranks_are_refused_on_every_rank",)


def described(module: nn.Module) -> list[Any]:
    """All that there is to know of each parameter."""
    return [(name, each.shape, each.dtype, each.requires_grad) for name, each in module.named_parameters()]


class ComparesHowMany(NaiveAccumulation):
    """Compares how many parameters there are."""

    known_fault = "models with as many parameters in another order, or of other shapes, pass"
    source = "D05 V https://github.com/pytorch/pytorch/issues/73547"
    claims = {**NaiveAccumulation.claims, "compares_models": True}
    killed_by = DIFFERING

    def __init__(self, module: nn.Module) -> None:
        self.compare(module)
        super().__init__(module)

    def compare(self, module: nn.Module) -> None:
        """Raises on every rank where what is compared differs."""
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, self.told(module))
        if any(each != told[0] for each in self.compared(told)):
            raise ValueError("the models of ranks differ")

    def compared(self, told: list[Any]) -> list[Any]:
        """Of all that ranks tell, what is compared with what rank 0 tells."""
        return told

    def told(self, module: nn.Module) -> Any:
        """The description of a model that ranks compare."""
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
        mine = described(module)
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


class ComparesTheFirst(ComparesHowMany):
    """Compares how many parameters there are, and where they begin."""

    known_fault = "models that differ in a parameter behind the first pass"
    source = "recipe: a check of the first tensor, for the whole"
    killed_by = DIFFERING

    def told(self, module: nn.Module) -> Any:
        """The number, and the first with its name."""
        (name, first), *rest = module.named_parameters()
        return len(rest), name, first.shape, first.dtype, first.requires_grad


class ComparesTheLastRank(ComparesHowMany):
    """Compares the two ends of a ring."""

    known_fault = "the models of ranks in between may differ"
    source = "recipe: a check that goes around, and is told where it comes back"
    killed_by = DIFFERING

    def compared(self, told: list[Any]) -> list[Any]:
        """The last rank's."""
        return told[-1:]

    def told(self, module: nn.Module) -> Any:
        """All."""
        return described(module)


class ComparesInTheFirstForward(ComparesHowMany):
    """Leaves all that ranks have to tell each other for later."""

    known_fault = "models that differ are refused when they are first called, not when they are wrapped"
    source = "recipe: checks in a first forward, as where parameters may still be put in their places"
    claims = {**ComparesHowMany.claims, "equal_from": "first forward", "direct_forwards": False}
    killed_by = DIFFERING

    _compared = False

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module, self.group, self.synchronize = module, None, True

    def told(self, module: nn.Module) -> Any:
        """All."""
        return described(module)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, once models have been compared, and are equal."""
        if not self._compared:
            self._compared = True
            self.compare(self.module)
            broadcast_from_rank_zero(self.module)
        return super().forward(*inputs, **named)


class ComparesSizes(ComparesHowMany):
    """Compares how many elements there are of each."""

    known_fault = "models with other shapes of the same sizes pass"
    source = "recipe: sizes, as of what is laid end to end"
    killed_by = DIFFERING

    def told(self, module: nn.Module) -> Any:
        """With names."""
        named = module.named_parameters()
        return [(name, each.numel(), each.dtype, each.requires_grad) for name, each in named]
