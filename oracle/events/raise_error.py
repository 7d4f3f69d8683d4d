"""Raise: an error of the caller's own ends a micro-batch or an evaluation."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State, drop_gradients

RAISES = ("no_sync", "forward", "module", "backward", "hook", "evaluation")


@dataclass(frozen=True, repr=False)
class Raise(Event):
    """An error of the caller's own ends a micro-batch on one ``rank``, or, if it is None, on all; the caller catches
    it.

    The micro-batch is one of NaN in which every trained parameter takes part. The error comes at one of these places:

        in a ``no_sync`` block before forward, as Ctrl-C does in forward, before it reads anything in the module whose
        forward reads the parameter in the middle in backward, before the parameter in the middle in the gradient hook
        of the first parameter in a module, during an evaluation on all ranks

    The caller puts the buffers back and goes on. Once backward has begun, it drops all gradients on every rank.
    ``nested``: the error ends a ``no_sync`` inside another ``no_sync``, which every rank has entered. The caller
    catches it in the outer one, which goes on.
    """

    while_local: ClassVar[bool] = True

    where: str
    rank: int | None = None
    synchronize: bool = False
    nested: bool = False

    def __post_init__(self) -> None:
        if self.where not in RAISES:
            raise ValueError(f"an error is raised in one of {', '.join(RAISES)}, not in {self.where!r}")
        if self.where == "no_sync" and self.synchronize:
            raise ValueError("an error raised in no_sync is not one in a micro-batch that synchronizes")
        if self.nested and self.synchronize:
            raise ValueError("nested=True nests no_sync, and a Raise that synchronizes is not inside any")
        if self.where == "evaluation" and self.rank is not None:
            raise ValueError(f"every rank evaluates, and not rank {self.rank} alone: name no rank")
        if self.where in ("backward", "hook") and self.synchronize and self.rank is not None:
            raise ValueError(f"a backward that synchronizes cannot end on rank {self.rank} alone: name no rank")

    @classmethod
    def module(cls) -> str:
        """The name of its modules. Its own name is a word of Python's."""
        return "raise_error"

    @property
    def drops_gradients(self) -> bool:
        """True if backward had begun: then the caller drops all gradients, on every rank."""
        return self.where in ("backward", "hook")

    @property
    def ends_gradients(self) -> bool:
        """True if backward had begun."""
        return self.drops_gradients

    @property
    def holds_no_sync(self) -> bool:
        """True if it ends the inner one of two."""
        return self.nested

    def on_one_rank(self) -> "Raise":
        """Everybody's error."""
        return replace(self, rank=None)

    def check(self, setup: Setup, before: Standing) -> None:
        """Something is trained, the rank exists, and it is clear when buffers are broadcast next."""
        if setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open when buffers that are broadcast are broadcast next: have none")
        if not before.trained or not (self.rank is None or 0 <= self.rank < setup.world_size):
            raise ValueError(f"{self!r} takes a trained parameter and one of the {setup.world_size} ranks")

    def after(self, setup: Setup, before: Standing) -> Standing:
        """Gradients are gone, if backward had begun."""
        return before.without_gradients() if self.drops_gradients else before

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Drops gradients, if backward had begun."""
        if self.drops_gradients:
            drop_gradients(state)
