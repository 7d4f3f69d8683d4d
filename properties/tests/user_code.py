"""What somebody could hand over with ``--impl``, right and wrong, and what ranks run in the tests of `properties`."""

import contextlib
import copy
import functools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.main_grad_buckets import MainGradBuckets
from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.static_buckets import Bucket, StaticBuckets
from lockstep.impls.trainer import StaticBucketsTrainer
from lockstep.impls.twins.precision import CompressesToBFloat16
from lockstep.impls.zero2 import Zero2

not_callable = 3


def bare(module: nn.Module) -> nn.Module:
    """The module itself: no data parallelism at all."""
    return module


class NeverSynchronizes(nn.Module):
    """Starts all ranks alike, and from then on every rank trains by itself."""

    claims = {"accumulation": True, "several_dtypes": True}

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            torch.distributed.broadcast(parameter.data, src=0)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


class KeepsMainGradients(MainGradBuckets):
    """Main gradients of which no window can be dropped; it declares nothing."""

    claims: Any = None
    zero_grad = nn.Module.zero_grad


class CompressesUnasked(CompressesToBFloat16):
    """Gradients travel in bfloat16; it declares nothing."""

    claims: Any = None


class HasAZeroMethodOfItsOwn(KeepsMainGradients):
    """The same, and a method to drop one, under another name than `zero_grad`."""

    def zero_grad_buffer(self) -> None:
        MainGradBuckets.zero_grad(self)


class ClipsWithoutEpsilon(StaticBucketsTrainer):
    """Leaves out what is added to the norm."""

    def scale_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float, norm: torch.Tensor) -> None:
        for gradient in self.gradients():
            gradient.mul_(torch.clamp(max_norm / norm, max=1.0))


class ReducesEachGradient(nn.Module):
    """One all-reduce for each gradient that there is, when backward is over; it declares nothing."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            torch.distributed.broadcast(parameter.data, src=0)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def finish_gradient_synchronization(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()


class TakesOneInputAndSums(ReducesEachGradient):
    """Its forward takes one argument; and the mean is a sum."""

    def forward(self, batch: Any) -> Any:
        return self.module(batch)

    def finish_gradient_synchronization(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)


class AveragesWhenLookedAt(ReducesEachGradient):
    """Nothing is sent before somebody asks for the means."""

    due = False

    def finish_gradient_synchronization(self) -> None:
        self.due = True

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        if self.due:
            super().finish_gradient_synchronization()
        self.due = False
        return {name: parameter.grad for name, parameter in self.module.named_parameters()}


class ClaimsTheImpossible:
    """Claims something that there is no word for."""

    claims: Any = {"magic": True}

    def __init__(self, module: nn.Module) -> None: ...


class ClaimsInAList(ClaimsTheImpossible):
    """Claims that have no values; the next are as wrong."""

    claims = ["unused"]


class ClaimsInAText(ClaimsTheImpossible):
    claims = "unused"


class ClaimsFive(ClaimsTheImpossible):
    claims = 5


class ClaimsAFunction(ClaimsTheImpossible):
    claims = {"joins": bare}


class RefusesToBeBuilt:
    """Says no, on every rank, before anything is done."""

    def __init__(self, module: nn.Module) -> None:
        raise RuntimeError("this wrapper needs a GPU")


class NeedsAGroup:
    """Cannot be called with the module alone; nor can the next ones."""

    def __init__(self, module: nn.Module, group: object) -> None: ...


class TakesNothing: ...


class NeedsBoth:
    """A cap, which it is given, and something else."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float, *, group: object) -> None: ...


def gives_nothing(module: nn.Module) -> None:
    """Forgets to return what it makes."""


def gives_a_list(module: nn.Module) -> list[nn.Module]:
    """Nothing that could be called."""
    return [module]


class SetsNoSync(NeverSynchronizes):
    no_sync: Any = True


def makes_no_sync(module: nn.Module) -> nn.Module:
    """Claims for what it makes that there is a `no_sync`."""
    return module


makes_no_sync.claims = {"accumulation": True}  # type: ignore[attr-defined]


def makes_main_gradients(module: nn.Module) -> nn.Module:
    """What is made is to be asked to finish, and to zero gradients."""
    return MainGradBuckets(module)


def makes_shards(module: nn.Module) -> nn.Module:
    """The same of what holds gradients in shards."""
    return Zero2(module)


makes_main_gradients.claims = MainGradBuckets.claims  # type: ignore[attr-defined]
makes_shards.claims = Zero2.claims  # type: ignore[attr-defined]


class RaisesATypeError:
    """Its own, and only on one rank."""

    def __init__(self, module: nn.Module, *, group: object = None) -> None:
        if torch.distributed.get_world_size() == 1:
            raise TypeError("one rank is too few")


@functools.wraps(NeedsAGroup)
def fills_in(module: nn.Module) -> nn.Module:
    """Says that it needs what it gives itself."""
    return module


class LooksForWhatIsNotThere(NaiveAccumulation):
    """No refusal: an operation goes wrong, and no ``raise`` says why."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.first = [each for each in self.trained if each.numel() > 1000][0]  # noqa: RUF015


class WaitsForNobody(nn.Module):
    """Rank 0 begins a collective that no other rank comes to."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        if torch.distributed.get_rank() == 0:
            torch.distributed.barrier()

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class EvaluatesACopy(NaiveAccumulation):
    """Never calls the module itself for an evaluation."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, or a copy's."""
        module = self.module if torch.is_grad_enabled() else copy.deepcopy(self.module)
        return module(*inputs, **named)


class KeepsItsFirstEvaluation(NaiveAccumulation):
    """Answers every evaluation with the loss of the first, whatever was stepped since."""

    first: Any = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, or what it gave once."""
        if torch.is_grad_enabled():
            return self.module(*inputs, **named)
        self.first = self.module(*inputs, **named) if self.first is None else self.first
        return self.first


class _Summed(Bucket):
    def average(self, kernels: bool | None) -> None:
        self.hand_out()


class SumsTheBuckets(StaticBucketsTrainer):
    """Never divides."""

    bucket_class = _Summed


class SumsTheShards(Zero2):
    """Never divides: what every rank puts in is so many times too large."""

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        for mean in self.means.values():
            mean *= torch.distributed.get_world_size()


class LentParameters(Zero2):
    """The module has its parameters while it runs, as where they are views of what is gathered for it."""

    claims = {**Zero2.claims, "freezing": False, "survives_errors": False, "drops_losses": False}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0, kernels: bool | None = None) -> None:
        super().__init__(module, bucket_cap_mb, kernels)
        self._homes = [(home, dict(home._parameters)) for home in module.modules()]
        self._take_back()

    def _take_back(self) -> None:
        for home, _ in self._homes:
            home._parameters.clear()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Lends it the parameters for as long."""
        for home, parameters in self._homes:
            home._parameters.update(parameters)
        try:
            return super().forward(*inputs, **named)
        finally:
            self._take_back()


class SumsOrHangs(NaiveAccumulation):
    """Has the sum in place of the mean; on less than four ranks its ranks never come to an end."""

    def finish_gradient_synchronization(self) -> None:
        while dist.get_world_size() < 4:
            time.sleep(0.1)
        super().finish_gradient_synchronization()
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad *= dist.get_world_size()


class TwoDefects(StaticBucketsTrainer):
    """Doubles gradients that are added to what was there, and takes half the norm."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._there = [each for each in self.module.parameters() if each.grad is not None]
        return super().forward(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        for parameter in self._there:
            assert parameter.grad is not None
            parameter.grad *= 2

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        return super().total_norm(gradients, norm_type) / 2


class Clips(StaticBuckets):
    """Clips and unscales itself, and leaves the optimizer to the caller."""

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        return float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), max_norm, norm_type))

    def unscale_(self, scale: float) -> bool:
        gradients = [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]
        for gradient in gradients:
            gradient /= scale
        return all(bool(gradient.isfinite().all()) for gradient in gradients)


class ClipsEachByItself(NaiveAccumulation):
    """Has a clip of its own that knows one norm, and takes a factor for each; it declares nothing."""

    claims: Any = None

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        norms = [torch.nn.utils.clip_grad_norm_(parameter, max_norm) for parameter in self.trained]
        return torch.linalg.vector_norm(torch.stack(norms))
