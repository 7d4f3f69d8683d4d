"""Loss scales and masters gone astray, in one known way each, over buckets that unscale, clip and step themselves."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.trainer import MasterOptimizer, StaticBucketsTrainer

UNSCALED = ("test_gradients_are_unscaled_before_they_are_clipped",)
AGREED = ("test_ranks_agree_on_overflows_and_on_the_loss_scale",)
MASTERS = ("test_masters_are_float32",)


class ScaledNorm(StaticBucketsTrainer):
    """Compares the norm of scaled gradients with a largest norm that is not scaled."""

    known_fault = "the norm is taken while gradients are still scaled"
    source = "recipe"  # G18 is a report of this kind, of which the cause is not known
    killed_by = UNSCALED
    scale = 1.0

    def unscale_(self, scale: float) -> bool:
        """Remembers the scale."""
        self.scale = scale
        return super().unscale_(scale)

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """Of what gradients were before."""
        return super().total_norm(gradients, norm_type) * self.scale


class UnscalesWhenItClips(ScaledNorm):
    """Puts unscaling off until gradients are clipped, which comes first."""

    known_fault = "gradients are clipped, and then unscaled"
    source = "recipe"
    killed_by = UNSCALED

    def unscale_(self, scale: float) -> bool:
        """Only looks whether all are finite."""
        self.scale = scale
        return all(bool(gradient.isfinite().all()) for gradient in self.gradients())

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """Of gradients as they are."""
        return StaticBucketsTrainer.total_norm(self, gradients, norm_type)

    def scale_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float, norm: torch.Tensor) -> None:
        """Clips, then unscales."""
        super().scale_gradients(parameters, max_norm, norm)
        StaticBucketsTrainer.unscale_(self, self.scale)


class LooksForInfinity(StaticBucketsTrainer):
    """NaN is not infinite."""

    known_fault = "a gradient that is NaN is no overflow"
    source = "recipe"
    killed_by = AGREED

    def unscale_(self, scale: float) -> bool:
        """Divides, and looks for infinities."""
        super().unscale_(scale)
        return not any(bool(gradient.isinf().any()) for gradient in self.gradients())


class LooksAtTheSum(StaticBucketsTrainer):
    """A sum is not finite where an element is not; nor where it overflows by itself."""

    known_fault = "an overflow is looked for in the sum of a gradient, in the gradient's dtype"
    source = "recipe"
    killed_by = AGREED

    def unscale_(self, scale: float) -> bool:
        """Divides, and has looked at the sums before."""
        finite = all(bool(gradient.sum().isfinite()) for gradient in self.gradients())
        super().unscale_(scale)
        return finite


class LooksAtTheFirstElement(StaticBucketsTrainer):
    """Takes one element of each gradient for all."""

    known_fault = "only the first element of each gradient is looked at"
    source = "recipe"
    killed_by = AGREED

    def unscale_(self, scale: float) -> bool:
        """Divides, and looks at too little."""
        super().unscale_(scale)
        return all(bool(gradient.flatten()[:1].isfinite().all()) for gradient in self.gradients())


class LooksAtSixteenBits(StaticBucketsTrainer):
    """Assumes that only gradients of 16-bit parameters overflow, if there are any."""

    known_fault = "an infinite gradient in float32 is no overflow beside parameters of 16 bits"
    source = "recipe"
    killed_by = AGREED

    def unscale_(self, scale: float) -> bool:
        """Divides, and looks at too little."""
        super().unscale_(scale)
        narrow = [gradient for gradient in self.gradients() if gradient.itemsize == 2]
        return all(bool(gradient.isfinite().all()) for gradient in narrow or self.gradients())


class UnscalesTwice(ScaledNorm):
    """Divides by the scale in `unscale_`, and again in clipping."""

    known_fault = "clipping unscales once more"
    source = "recipe"
    killed_by = UNSCALED

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Unscales first."""
        StaticBucketsTrainer.unscale_(self, self.scale)
        return StaticBucketsTrainer.clip_grad_norm_(self, max_norm, norm_type)

    def total_norm(self, gradients: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
        """Of gradients as they are."""
        return StaticBucketsTrainer.total_norm(self, gradients, norm_type)


class LooksAtItsOwn(StaticBucketsTrainer):
    """Decides by this rank's own gradients, before the reduction, whether there was an overflow."""

    known_fault = "each rank decides by itself whether there was an overflow, so only some skip the step"
    source = "H15 V https://github.com/NVIDIA/Megatron-LM/pull/5331"
    killed_by = AGREED
    finite = True

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        self.finite = self.finite and bool(parameter.grad.isfinite().all())
        super()._on_gradient(parameter)

    def unscale_(self, scale: float) -> bool:
        """True if the hooks saw only finite gradients."""
        super().unscale_(scale)
        finite, self.finite = self.finite, True
        return finite


class LooksWhereItSynchronizes(LooksAtItsOwn):
    """Ranks agree, and nobody has looked inside `no_sync`."""

    known_fault = "an overflow inside no_sync is seen by nobody"
    source = "recipe"
    killed_by = AGREED

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        before = self.finite
        super()._on_gradient(parameter)
        if not self.synchronize:
            self.finite = before

    def unscale_(self, scale: float) -> bool:
        """True if the hooks of all ranks saw only finite gradients."""
        overflows = torch.tensor(float(not super().unscale_(scale)))
        dist.all_reduce(overflows)
        return not overflows


class NeverOverflows(StaticBucketsTrainer):
    """Says that all gradients are finite, without a look."""

    known_fault = "nobody looks for overflows: infinite gradients are stepped"
    source = "H19 V https://github.com/deepspeedai/DeepSpeed/pull/8035"
    killed_by = AGREED

    def unscale_(self, scale: float) -> bool:
        """Divides, and says so."""
        super().unscale_(scale)
        return True


class SkipsOnRankZero(StaticBucketsTrainer):
    """Only rank 0, which logs it, skips the step."""

    known_fault = "the step is skipped on rank 0 only"
    source = "recipe"
    killed_by = AGREED

    def unscale_(self, scale: float) -> bool:
        """Right in a world of one."""
        return super().unscale_(scale) or dist.get_rank() > 0


class _ShortMasters(MasterOptimizer):
    def master_of(self, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(parameter.detach().clone())


class MastersInTheirDtype(StaticBucketsTrainer):
    """Has masters, but copies the parameters' dtype with their values."""

    known_fault = "masters are 16-bit"
    source = "H13 V https://github.com/TensorAuto/OpenTau/pull/182"
    killed_by = MASTERS
    optimizer_class = _ShortMasters


class _Refreshed(MasterOptimizer):
    def step(self) -> None:
        super().step()
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(self.named[name])


class MastersFromParameters(StaticBucketsTrainer):
    """Copies the rounded parameters back into the masters."""

    known_fault = "masters are overwritten by the rounded parameters after each step"
    source = "recipe"
    killed_by = MASTERS
    optimizer_class = _Refreshed


class _ShortState(MasterOptimizer):
    def step(self) -> None:
        super().step()
        for name, master in self.masters.items():
            for key, value in self.inner.state.get(master, {}).items():
                if key != "step" and isinstance(value, torch.Tensor):
                    value.copy_(value.to(self.named[name].dtype))


class StateThroughTheirDtype(StaticBucketsTrainer):
    """Stores the float32 moments through the parameters' dtype."""

    known_fault = "float32 state is stored through 16 bits"
    source = "N04 V https://github.com/databricks/flashoptim/issues/2"
    killed_by = MASTERS
    optimizer_class = _ShortState


class KeepsTheOverflow(StaticBucketsTrainer):
    """Leaves a step that is skipped before it gets to where gradients are zeroed."""

    known_fault = "after an overflow gradients are not zeroed, and the next window adds to what overflowed"
    source = "B18 V https://github.com/espnet/espnet/pull/3283"
    killed_by = AGREED
    _skips = False

    def unscale_(self, scale: float) -> bool:
        """Remembers whether all are finite."""
        finite = super().unscale_(scale)
        self._skips = not finite
        return finite

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Not after a step that was skipped."""
        if not self._skips:
            super().zero_grad(set_to_none)
        self._skips = False
