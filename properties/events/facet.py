"""The base of all facets. Each module beside this one has the facet of one kind of event."""

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
    """Something that a scenario can have. ``phases`` of a program and ``options`` of a scenario bring it about, and say
    what must be claimed for it; only where there are neither, ``claim`` says so. ``parameters``: how many it takes.
    ``by_chance``: it is drawn beside any others, so that `properties.strategies.combined` need not ask for it.
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
        """True if everything is claimed that brings it about."""
        phases = all(kind.may_be_drawn(claims) for kind in self.phases)
        return phases and all(OPTIONS[name](claims) for name in self.options) and self.claim(claims)


class Facet(ABC, Generic[E]):
    """Everything of a kind of event but what it means and how a rank carries it out."""

    undrawn: ClassVar[str] = ""  # if no phase draws it: why
    shown_by: ClassVar[Kind | None] = None  # the kind of phase that follows it at the latest, so that it is seen
    optimizes: ClassVar[bool] = False  # whether the caller has an optimizer wherever there is one of these

    reads: ClassVar[bool] = False  # whether it shows the parameters as an evaluation has read them

    @abstractmethod
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of phases by which a training loop has it."""

    @abstractmethod
    def words(self, scenario: Scenario, place: int, event: E, expected: Expectation | None) -> list[str]:
        """The event of that place in words, a line for each rank where ranks differ. ``expected``: what must come of
        it, where that is known.
        """

    @abstractmethod
    def lines(self, writer: Writer, number: int, event: E) -> list[str]:
        """The caller's act as lines of a script. ``number``: the event's place in the program."""

    def features(self) -> Mapping[str, Feature]:
        """The features of scenarios that are mostly about it, by name."""
        return {}

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        """The part of it that is not claimed, and is no feature, in a few words; empty if there is none."""
        return ""

    def simpler(self, event: E) -> Iterator[E]:
        """Events that differ from it in what it can be without."""
        yield from ()

    def reordered(self, event: E, change: Callable[[Orders], Iterable[Iterable[int]]]) -> E:
        """The event with other orders of parameters, one for each sample, if it has any."""
        return event

    def renumbered(self, event: E, left: Callable[[Iterable[int]], tuple[int, ...]]) -> E:
        """The event where a parameter is left out, by which others have other numbers: ``left`` tells them."""
        if not hasattr(event, "parameters"):
            return event
        changed: dict[str, Any] = {"parameters": left(event.parameters)}
        return replace(event, **changed)

    @property
    def forward(self) -> bool:
        """True if it is a forward on every rank."""
        return any(kind.forward for kind in self.kinds())


def has(*kinds: type[Event]) -> Callable[[Scenario], bool]:
    """Tells whether a scenario has an event of one of these kinds."""
    return lambda scenario: scenario.has(*kinds)


def in_turn(scenario: Scenario, *kinds: type[Event]) -> bool:
    """True if events of these kinds come one after the other, others maybe in between."""
    events = iter(scenario.program)
    return all(any(isinstance(event, kind) for event in events) for kind in kinds)
