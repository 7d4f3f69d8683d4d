"""Precision recipes: how many bytes every parameter costs, by what is stored of it."""

from dataclasses import dataclass

from lockstep.oracle.formats import FORMATS

STATE_TENSORS = {"sgd": 0, "momentum": 1, "adam": 2}


@dataclass(frozen=True)
class Recipe:
    """Bytes per element: of parameters and gradients in the compute format, of the fp32 copies, of optimizer state.

    ``fp32_gradient`` is a second, fp32 gradient beside the first (0 without); then it is what is reduced.
    """

    parameter: int
    gradient: int
    fp32_gradient: int
    master: int
    state: int

    @property
    def optimizer(self) -> int:
        """k of the paper: master weights and state; 12 for Adam in mixed precision."""
        return self.master + self.state

    @property
    def wire(self) -> int:
        """Bytes per gradient element that is sent."""
        return self.fp32_gradient or self.gradient


def recipe(compute: str, optimizer: str, fp32_gradients: bool = False) -> Recipe:
    """Compute in 16 bits: parameter 2, gradient 2, fp32 master 4, and 0, 1 or 2 fp32 tensors of state (sgd, momentum,
    adam). Compute in fp32 or fp64: no master, state in the same format. fp32 gradients as well: 4 more.

    Source: ZeRO, section 3.1 (2 + 2 + 12 bytes); systems with fp32 accumulation: 20.
    """
    if compute not in FORMATS:
        raise ValueError(f"compute format {compute!r}: give one of {', '.join(FORMATS)}")
    if optimizer not in STATE_TENSORS:
        raise ValueError(f"optimizer {optimizer!r}: give one of {', '.join(STATE_TENSORS)}")
    size = FORMATS[compute].bytes
    mixed = size < 4
    if fp32_gradients and not mixed:
        raise ValueError(f"fp32 gradients beside {compute} ones: only a 16-bit compute format has a use for them")
    return Recipe(
        size, size, 4 if fp32_gradients else 0, 4 if mixed else 0, STATE_TENSORS[optimizer] * (4 if mixed else size)
    )
