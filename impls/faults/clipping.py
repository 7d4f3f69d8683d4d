"""Clipping with one known fault each, over buckets that clip, unscale and step themselves."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.frameworks.fsdp1 import FSDP1
from lockstep.impls.trainer import StaticBucketsTrainer

NORM = ("test_the_reported_norm_is_that_of_the_whole_averaged_gradient",)
OVERFLOWS = ("test_ranks_agree_on_overflows_and_on_the_loss_scale",)
SCALED = ("test_clipping_scales_every_gradient_by_one_factor",)


class TiedCountedTwice(StaticBucketsTrainer):
    """Goes through the parameters by name."""

    known_fault = "a tied parameter counts once for each of its names"
    source = "G05 V https://github.com/NVIDIA/Megatron-LM/pull/7227"
    killed_by = NORM

    def gradients(self) -> list[torch.Tensor]:
        """One for each name."""
        named = self.module.named_parameters(remove_duplicate=False)
        return [parameter.grad for _, parameter in named if parameter.grad is not None]

    def unscale_(self, scale: float) -> bool:
        """Each tensor once."""
        gradients = list(dict.fromkeys(self.gradients()))
        for gradient in gradients:
            gradient /= scale
        return all(bool(gradient.isfinite().all()) for gradient in gradients)


class SumsReplicas(StaticBucketsTrainer):
    """Adds up squared norms over ranks, which is right for shards, and every rank has all of the gradient."""

    known_fault = "the squared norm of replicated gradients is added up over the ranks"
    source = "G01 V https://github.com/pytorch/pytorch/pull/88955"
    killed_by = NORM

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """N times the power of the norm."""
        norm = super().total_norm(gradients, norm_type)
        if norm_type == float("inf"):
            dist.all_reduce(norm, dist.ReduceOp.MAX)
            return norm
        power = norm**norm_type
        dist.all_reduce(power)
        return power ** (1 / norm_type)


class LocalNorm(StaticBucketsTrainer):
    """Takes the norm of what this rank had before the reduction."""

    known_fault = "the norm is taken of this rank's own gradient, before averaging"
    source = "G20 V https://github.com/horovod/horovod/issues/1346"
    killed_by = NORM

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb)
        self.own: dict[nn.Parameter, torch.Tensor] = {}

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        self.own[parameter] = parameter.grad.clone()
        super()._on_gradient(parameter)

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """Of the gradients that the hooks saw."""
        return super().total_norm(list(self.own.values()), norm_type)


class AlwaysTheLargest(StaticBucketsTrainer):
    """Combines the parameters' norms by their maximum, whatever the norm."""

    known_fault = "the norm is that of the parameter with the largest, not of all together"
    source = "recipe"
    killed_by = NORM

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """Right for one parameter, and for the maximum norm."""
        norms = [super(AlwaysTheLargest, self).total_norm([gradient], norm_type) for gradient in gradients]
        return torch.stack(norms).max() if norms else torch.tensor(0.0)


class ListsWhatItClips(StaticBucketsTrainer):
    """Lists what it clips once: what has a gradient then."""

    known_fault = "a parameter without a gradient at the first clip counts in no norm, and is never clipped"
    source = "recipe: a first clip in which a parameter takes no part"
    killed_by = (*NORM, *SCALED)
    _listed: list[nn.Parameter] | None = None

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Of these alone."""
        if self._listed is None:
            self._listed = [parameter for parameter in self.module.parameters() if parameter.grad is not None]
        there = [parameter.grad for parameter in self._listed if parameter.grad is not None]
        norm = self.total_norm(there, norm_type)
        self.scale_gradients(self._listed, max_norm, norm)
        return norm


class LargestElement(StaticBucketsTrainer):
    """Takes the largest element where the one furthest from zero is meant."""

    known_fault = "the infinity norm is the largest element, and not the largest absolute value"
    source = "recipe"
    killed_by = NORM

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """Right where no element is negative, and for other norms."""
        found = list(gradients)
        if norm_type != float("inf") or not found:
            return super().total_norm(found, norm_type)
        return torch.stack([gradient.max() for gradient in found]).max()


class SumOfElements(StaticBucketsTrainer):
    """Adds elements up where sizes are to be added."""

    known_fault = "the 1-norm is the sum of the elements, and not of their absolute values"
    source = "recipe"
    killed_by = NORM

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """Right where no element is negative, and for other norms."""
        found = list(gradients)
        if norm_type != 1 or not found:
            return super().total_norm(found, norm_type)
        return torch.stack([gradient.sum() for gradient in found]).sum()


class ReportsWhatIsLeft(StaticBucketsTrainer):
    """Returns the norm that gradients have once they are clipped."""

    known_fault = "the norm is taken after clipping"
    source = "recipe"
    killed_by = NORM

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips as it should."""
        super().clip_grad_norm_(max_norm, norm_type)
        return self.total_norm(self.gradients(), norm_type)


class NothingLeftToScale(StaticBucketsTrainer):
    """Computes the norm from the iterator that it is given, and has none left to scale."""

    known_fault = "the generator of parameters is used up by the norm, and nothing is scaled"
    source = (
        "G11 V https://github.com/areal-project/AReaL/pull/335, "
        "G10 V https://github.com/huggingface/transformers/pull/46113"
    )
    killed_by = SCALED

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """The norm is right."""
        parameters = self.module.parameters()
        norm = self.total_norm([p.grad for p in parameters if p.grad is not None], norm_type)
        self.scale_gradients(parameters, max_norm, norm)
        return norm


class ScalesUp(StaticBucketsTrainer):
    """Multiplies by max_norm / norm, also where that is more than 1."""

    known_fault = "the factor has no min(1, ...), so small gradients grow"
    source = "recipe"
    killed_by = SCALED

    def scale_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float, norm: torch.Tensor) -> None:
        """Makes every norm the largest that it may be."""
        for gradient in self.gradients():
            gradient.mul_(max_norm / (norm + 1e-6))


class EachForItself(StaticBucketsTrainer):
    """Clips every parameter by its own norm."""

    known_fault = "each parameter's gradient is clipped by its own norm"
    source = "recipe"
    killed_by = SCALED

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """The norm is right."""
        norm = self.total_norm(self.gradients(), norm_type)
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                own = self.total_norm([parameter.grad], norm_type)
                self.scale_gradients([parameter], max_norm, own)
        return norm


class ScalesOnOneRank(StaticBucketsTrainer):
    """Scales on rank 0 alone, which is the one that logs the norm."""

    known_fault = "gradients are scaled on rank 0 only"
    source = "recipe"
    killed_by = SCALED

    def scale_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float, norm: torch.Tensor) -> None:
        """Right in a world of one."""
        if dist.get_rank() == 0:
            super().scale_gradients(parameters, max_norm, norm)


class ClipsEveryMicroBatch(StaticBucketsTrainer):
    """Once it knows the largest norm, clips what was accumulated whenever a micro-batch begins."""

    known_fault = "gradients are clipped after every micro-batch, and not once per step"
    source = "B25 V https://github.com/tenstorrent/tt-metal/issues/17568"
    killed_by = SCALED

    limit: tuple[float, float] | None = None

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips, and remembers by what."""
        self.limit = (max_norm, norm_type)
        return super().clip_grad_norm_(max_norm, norm_type)

    def forward(self, *inputs: object, **named: object) -> object:
        """Clips first."""
        if self.limit is not None:
            super().clip_grad_norm_(*self.limit)
        return super().forward(*inputs, **named)


class RaisesOnAnOverflow(StaticBucketsTrainer):
    """Asks torch to raise where the norm is not finite, which with a loss scale it is now and then."""

    known_fault = "clipping raises after an overflow, where the step is to be skipped"
    source = "recipe"
    killed_by = OVERFLOWS

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """A finite one."""
        return torch.nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite=True)


class TheZeroIsOverwritten(FSDP1):
    """Torch's own function, which maximizes into the tensor that a rank without gradients keeps as its zero."""

    known_fault = "the largest norm of all is reported for ever, by infinity norm, once some rank had no gradient"
    source = "systems: FSDP1 of torch 2.11 to 2.14, docs/findings"
    killed_by = NORM

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """As it comes."""
        return self.module.clip_grad_norm_(max_norm, norm_type)


class ReturnsNoNorm(StaticBucketsTrainer):
    """Clips, and says nothing."""

    known_fault = "the function that clips returns nothing where it is to return the norm"
    source = "G21 V https://github.com/pytorch/pytorch/issues/87401"
    killed_by = NORM

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
        """Scales rightly."""
        super().clip_grad_norm_(max_norm, norm_type)
