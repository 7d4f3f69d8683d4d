"""The caller's habits throughout a program, and the ways in which one rank's model can differ from the others'."""

from dataclasses import dataclass

from lockstep.oracle.short import Short, is_whole

SIDES = ("before", "after")
# The ways in which the model of one rank may differ from the others'.
WAYS = ("number", "size", "shape", "name", "dtype", "trained", "order")
OF_ALL = ("number", "order")  # the ways that concern no single parameter


@dataclass(frozen=True, repr=False)
class Caller(Short):
    """The unusual habits of the caller. Raises ValueError, in one line, for a combination without a meaning.

    seeded              seeds random numbers before wrapping, with a different seed on each rank
    hooked              number of the caller's hooks on each parameter; each doubles the gradient
    module_hooked       number of the caller's hooks on the model; each doubles the loss. Hooks on its modules, whose
                        changes cancel, come with them
    hooked_before       registers these hooks before wrapping, not after it
    keeps_gradients     hooks, registered after wrapping, keep each gradient once it has accumulated
    makes_optimizer     makes the optimizer right "before" or "after" wrapping, or, with "", when it is first needed
    asks_the_wrapper    takes the parameters to step, clip and zero, and the weights to save and load, from the wrapper
                        and not from the model
    beside              trains another model, whose turns come right "before" or "after" this one's
    joint               trains another model with the same loss, whose forwards come right "before" or "after"
    """

    seeded: bool = False
    hooked: int = 0
    module_hooked: int = 0
    hooked_before: bool = False
    keeps_gradients: bool = False
    makes_optimizer: str = ""
    asks_the_wrapper: bool = False
    beside: str = ""
    joint: str = ""

    def __post_init__(self) -> None:
        for name in ("hooked", "module_hooked"):
            if not is_whole(doublings := getattr(self, name), 0):
                raise ValueError(f"{name} is how often a hook doubles, a whole number from 0, not {doublings!r}")
        for name in ("makes_optimizer", "beside", "joint"):
            if (where := getattr(self, name)) not in ("", *SIDES):
                raise ValueError(f"{name} is one of {', '.join(SIDES)}, or '', not {where!r}")
        if self.hooked_before and not self.doublings:
            raise ValueError("hooked_before=True says when hooks are registered, and there are none")
        if self.beside and self.joint:
            raise ValueError("one other model is trained beside this one, or jointly with it: not both")

    @property
    def doublings(self) -> int:
        """The number of times that its hooks double a gradient."""
        return self.hooked + self.module_hooked

    @property
    def hooks(self) -> bool:
        """True if it has hooks of its own on the model when it is wrapped."""
        return bool(self.doublings or self.keeps_gradients)


AS_USUAL = Caller()


@dataclass(frozen=True, repr=False)
class Differing(Short):
    """One rank whose model differs from the others': the rank, the way (one of ``WAYS``), and the parameter, unless the
    way is one of ``OF_ALL``.
    """

    rank: int
    way: str
    parameter: int = 0

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"a model differs in one of {', '.join(WAYS)}, not {self.way!r}")
        if self.way in OF_ALL and self.parameter:
            raise ValueError(f"a model differs in its {self.way}, and not in that of parameter {self.parameter}")
