"""The base class of all facets. Each module beside this one holds the facet of one kind of event."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from lockstep.oracle.events import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.claimed import Claimed, always
from lockstep.properties.events.loop import Kind
from lockstep.properties.events.options import OPTIONS
from lockstep.properties.script.writer import Writer

E = TypeVar("E", bound=Event)
Orders = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Feature:
    """A property that a scenario can have.

    - ``phases``, ``options``: the parts of a program and of a scenario that produce it. They determine the claims it
      needs.
    - ``claim``: the claims it needs, if it has neither phases nor options.
    - ``parameters``: the least number of parameters.
    - ``by_chance``: it is drawn along with any other feature, so `properties.strategies.combined` need not ask for it.
    """

    occurs: Callable[[Scenario], bool]
    phases: tuple[Kind, ...] = ()
    options: tuple[str, ...] = ()
    parameters: int = 1
    claim: Claimed = always
    by_chance: bool = False

    def __post_init__(self) -> None:
        for name in self.options:
            if name not in OPTIONS:
                raise ValueError(f"there is no option {name!r} to draw; there are {', '.join(OPTIONS)}")
        if self.claim is not always and (self.phases or self.options):
            raise ValueError("a feature that phases or options bring about has no other claim than theirs")

    def claimed(self, claims: Claims) -> bool:
        """True if all claims that it needs are made."""
        phases = all(kind.may_be_drawn(claims) for kind in self.phases)
        return phases and all(OPTIONS[name](claims) for name in self.options) and self.claim(claims)


class Facet(ABC, Generic[E]):
    """All properties of a kind of event except its meaning and the way in which a rank carries it out."""

    undrawn: ClassVar[str] = ""  # the reason, if no phase draws it
    shown_by: ClassVar[Kind | None] = None  # the kind of phase that must follow so that its effect is observed
    optimizes: ClassVar[bool] = False  # true if the caller must have an optimizer

    reads: ClassVar[bool] = False  # true if it shows the parameters as an evaluation has read them

    @abstractmethod
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of phases in which a training loop contains it."""

    @abstractmethod
    def words(self, scenario: Scenario, place: int, event: E, expected: Expectation | None) -> list[str]:
        """The event of that place in words, with a line for each rank if ranks differ.

        ``expected``: its results, if known.
        """

    @abstractmethod
    def lines(self, writer: Writer, number: int, event: E) -> list[str]:
        """The event as lines of a script. ``number``: its place in the program."""

    def features(self) -> Mapping[str, Feature]:
        """The features of scenarios that mainly concern it, by name."""
        return {}

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        """The part of it that is neither claimed nor a feature, in a few words; empty if there is none."""
        return ""

    def simpler(self, event: E) -> Iterator[E]:
        """Simpler events of the same kind."""
        yield from ()

    def reordered(self, event: E, change: Callable[[Orders], Iterable[Iterable[int]]]) -> E:
        """The event with other orders of parameters, one for each sample, if it has any."""
        return event

    def renumbered(self, event: E, left: Callable[[Iterable[int]], tuple[int, ...]]) -> E:
        """The event after removal of a parameter. ``left`` renumbers the remaining parameters."""
        if not hasattr(event, "parameters"):
            return event
        changed: dict[str, Any] = {"parameters": left(event.parameters)}
        return replace(event, **changed)

    @property
    def forward(self) -> bool:
        """True if it is a forward on every rank."""
        return any(kind.forward for kind in self.kinds())


def has(*kinds: type[Event]) -> Callable[[Scenario], bool]:
    """A condition: the scenario has an event of one of these kinds."""
    return lambda scenario: scenario.has(*kinds)


def in_turn(scenario: Scenario, *kinds: type[Event]) -> bool:
    """True if the program has events of these kinds in this order, possibly with others in between."""
    events = iter(scenario.program)
    return all(any(isinstance(event, kind) for event in events) for kind in kinds)
