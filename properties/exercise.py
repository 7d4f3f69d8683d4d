"""An exercise: a run on ranks that is no program of events, for example one call of a collective, or an epoch."""

from typing import Any, ClassVar

from lockstep.oracle.short import Short
from lockstep.worlds.contract import Outcome


class Exercise(Short):
    """Frozen plain data whose repr evaluates to it. ``called``: the kind of exercise in one word."""

    program: ClassVar[tuple[Any, ...]] = ()  # `properties.errors.judge_errors` needs it, as a `Scenario` has one
    called: ClassVar[str]
    world_size: int

    def words(self) -> str:
        """The exercise in words."""
        raise NotImplementedError

    def shown(self, outcome: Outcome) -> list[str]:
        """The acts of ranks, line by line, if they are worth showing."""
        return []
