"""SetHyperparameters: of one group of parameters, or of all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from lockstep.oracle import hyperparameters
from lockstep.oracle.event import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.model import Hyperparameters
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class SetHyperparameters(Event):
    """Hyper-parameters change for one ``group`` of parameters, or, where it is None, for all.

    The next Step uses these; state and step counts go on.
    """

    values: Hyperparameters
    group: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The event with fields as JSON has them."""
        return cls(Hyperparameters(**values["values"]), values["group"])

    def check(self, setup: Setup, before: Standing) -> None:
        """The optimizer takes them, and the group exists."""
        setup.check_options(self.values)
        if self.group is not None and not 0 <= self.group <= len(setup.groups):
            raise ValueError(f"there is no group {self.group}: the last is {len(setup.groups)}")
        if before.joined and self.values.momentum:
            raise ValueError(f"{self!r}: a program with Join takes SGD without momentum, whose state others would keep")

    def after(self, setup: Setup, before: Standing) -> Standing:
        """ValueError for a combination that no optimizer takes."""
        settings = hyperparameters.changed(before.settings, self.values, self.group)
        return before._replace(settings=settings, momentum=before.momentum or hyperparameters.any_momentum(settings))

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Changes them."""
        state.settings = hyperparameters.changed(state.settings, self.values, self.group)
