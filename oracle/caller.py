"""The caller's habits throughout a program, beside its events; and the ways in which one rank's model can differ."""

from dataclasses import dataclass

from lockstep.oracle.short import Short, is_whole

SIDES = ("before", "after")
# In what the model of one rank may differ from those of others.
WAYS = ("number", "size", "shape", "name", "dtype", "trained", "order")
OF_ALL = ("number", "order")  # those that are about no parameter alone


@dataclass(frozen=True, repr=False)
class Caller(Short):
    """The unusual habits of the caller. Raises ValueError, in one line, for a combination without a meaning.

    ``seeded``: it seeds random numbers before it wraps, on each rank otherwise. ``hooked``: how often a hook of its own
    doubles each gradient that comes to a parameter; ``module_hooked``: how often one on the model doubles each loss,
    beside hooks on its modules that change nothing together. ``hooked_before``: these are there before the model is
    wrapped, and not after that. ``keeps_gradients``: hooks, registered after wrapping, keep the gradients that they
    find once these have accumulated. ``makes_optimizer``: right "before" or "after" it wraps the model, or, "", when it
    is first needed. ``asks_the_wrapper``: parameters, to step, clip and zero, and weights, to save and load, are those
    that the wrapper tells of itself, and not the model. ``beside``: another model takes its turns right "before" or
    "after" this one; ``joint``: another, with which it has one loss, has its forwards right "before" or "after" this
    one's.
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
    """The rank whose model differs from the others', in which of ``WAYS``, and in which parameter, but where it is in
    one of ``OF_ALL``.
    """

    rank: int
    way: str
    parameter: int = 0

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"a model differs in one of {', '.join(WAYS)}, not {self.way!r}")
        if self.way in OF_ALL and self.parameter:
            raise ValueError(f"a model differs in its {self.way}, and not in that of parameter {self.parameter}")
