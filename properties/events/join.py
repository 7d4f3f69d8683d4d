"""Ranks that run out of micro-batches: how it is drawn, described and written into a script."""

from bisect import bisect
from itertools import combinations

from lockstep.oracle.events import Backward, Join, Step
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.end_join import END_JOIN
from lockstep.properties.events.facet import Facet, Feature
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.script.writer import Writer

# Options with state that ranks would not update once they have run out of micro-batches.
STATEFUL = ("momentum", "adam", "masters", "loss scale", "buffers")


def _join(loop: Loop, phase: Phase) -> None:
    """Let ranks run out of micro-batches, possibly before these are synchronized.

    The forms: the last remaining rank; all but the first; the first; or the last, and another after one more
    micro-batch.
    """
    if loop.gone is None:
        loop.settled(phase)
        divisors = loop.claims.joins
        loop.events.append(Join(divisors[phase.shift // 2 % len(divisors)]))
        loop.gone = ()
    if phase.shift % 3 == 1 and loop.claims.accumulation:
        loop.backward(phase, False)
    form = phase.twist % 4
    loop.gone = _without(loop, (slice(-1, None), slice(1, None), slice(1), slice(-1, None))[form])
    if form == 3:
        loop.backward(phase)
        loop.gone = _without(loop, slice(-1, None))


def _without(loop: Loop, leaving: slice) -> tuple[int, ...]:
    """The ranks that have run out, together with those of the remaining ones that ``leaving`` selects.

    One rank stays.
    """
    there = [rank for rank in range(len(loop.ranks)) if rank not in (loop.gone or ())]
    return tuple(sorted({*(loop.gone or ()), *(there[leaving] if len(there) > 1 else ())}))


JOIN = Kind("join", _join, lambda claims: bool(claims.joins), while_joined=True, rules_out=lambda claims: STATEFUL)


class JoinFacet(Facet[Join]):
    """The facet of a join."""

    def kinds(self) -> tuple[Kind, ...]:
        return (JOIN,)

    def features(self) -> dict[str, Feature]:
        window = (JOIN, SYNCHRONIZE, STEP)
        return {
            "joins": Feature(lambda s: any(batch.gone for batch in s.microbatches), (JOIN,)),
            "joins twice": Feature(lambda s: _windows_left(s) > 1, (JOIN, END_JOIN, JOIN)),
            "others stay": Feature(_others_stay, (*window, END_JOIN, *window)),
            "step without rank 0": Feature(_steps_without_rank_zero, (*window, END_JOIN)),
        }

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        for _, event in scenario.events(Join):
            if event.divide_by not in claims.joins:
                return f"joins that divide by the {event.divide_by}"
        return ""

    def words(self, scenario: Scenario, place: int, event: Join, expected: Expectation | None) -> list[str]:
        told = "the number of all ranks" if event.divide_by == "world size" else "the number of ranks that remain"
        return [f"join: from here on ranks may run out of micro-batches; means divide by {told}"]

    def lines(self, writer: Writer, number: int, event: Join) -> list[str]:
        join = f"wrapped.join(divide_by_initial_world_size={event.divide_by == 'world size'})"
        return ["window = contextlib.ExitStack()", f"window.enter_context({join})"]


FACET = JoinFacet()


def _windows_left(scenario: Scenario) -> int:
    """The number of join windows in which some ranks run out of micro-batches before others."""
    joins = scenario.places(Join)
    return len({bisect(joins, place) for place, batch in scenario.events(Backward) if batch.gone})


def _others_stay(scenario: Scenario) -> bool:
    """True if the ranks that stay last in one join window have run out in another."""
    joins = scenario.places(Join)
    stay = [set(range(scenario.world_size)) for _ in (None, *joins)]
    for place, batch in scenario.events(Backward):
        stay[bisect(joins, place)].difference_update(batch.gone)
    return any(not here & there for here, there in combinations(stay[1:], 2))


def _steps_without_rank_zero(scenario: Scenario) -> bool:
    """True if there is a step after rank 0 has run out of micro-batches."""
    return any(0 in scenario.gone(place) for place in scenario.places(Step))
