"""An exercise: a run on ranks that is no program of events, for example one call of a collective, or an epoch."""

from typing import Any, ClassVar

from lockstep.oracle.short import Short
from lockstep.worlds.contract import Outcome


class Exercise(Short):
    """Plain data, frozen, with a repr that evaluates back. ``called``: what people call it, in one word."""

    program: ClassVar[tuple[Any, ...]] = ()  # a `Scenario` has one, so `properties.errors.judge_errors` looks for it
    called: ClassVar[str]
    world_size: int

    def words(self) -> str:
        """The exercise, for people."""
        raise NotImplementedError

    def shown(self, outcome: Outcome) -> list[str]:
        """The acts of ranks, line by line, if they are worth a look."""
        return []
