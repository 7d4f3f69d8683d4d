"""The parts of a scenario's model: parameters, buffers, hyper-parameters, a loss scale."""

import math
from dataclasses import dataclass

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.short import Short

LAYOUTS = ("contiguous", "transposed", "channels last")


@dataclass(frozen=True, repr=False)
class Hyperparameters(Short):
    """Options of an optimizer, named as in torch but for ``learning_rate``; None: as it was."""

    learning_rate: float | None = None
    momentum: float | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    maximize: bool | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None


DEFAULTS = Hyperparameters()


@dataclass(frozen=True, repr=False)
class Parameter(Short):
    """One parameter: its shape, its dtype (a name in ``FORMATS``), and whether it is trained.

    ``tied``: the earlier parameter of which this is another name. ``layout``: one of ``LAYOUTS``. In "transposed" the
    first dimension varies fastest; it needs two dimensions or more. "channels last" needs four.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True
    tied: int | None = None
    layout: str = LAYOUTS[0]

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"a parameter's layout is one of {', '.join(LAYOUTS)}, not {self.layout!r}")
        if (self.layout == LAYOUTS[1] and len(self.shape) < 2) or (self.layout == LAYOUTS[2] and len(self.shape) != 4):
            raise ValueError(f"the layout {self.layout!r} is none of shape {self.shape}")
        if self.dtype not in FORMATS:
            raise ValueError(f"a parameter's dtype is one of {', '.join(FORMATS)}, not {self.dtype!r}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"a parameter's sizes are at least 0, not {self.shape}")

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * FORMATS[self.dtype].bytes


@dataclass(frozen=True, repr=False)
class Buffer(Short):
    """A float32 tensor of the model that is not trained. Forward changes it in place, or, if ``reassigned``, assigns
    another tensor.
    """

    shape: tuple[int, ...]
    reassigned: bool = False

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape):
            raise ValueError(f"a buffer's sizes are at least 0, not {self.shape}")


@dataclass(frozen=True, repr=False)
class Group(Short):
    """Parameters with hyper-parameters of their own; None stands for the scenario's."""

    parameters: tuple[int, ...]
    hyperparameters: Hyperparameters = DEFAULTS


@dataclass(frozen=True, repr=False)
class LossScale(Short):
    """A loss scale, a power of two, and the number of steps in a row, none of them skipped, after which it doubles."""

    initial: float
    growth_interval: int = 2000
