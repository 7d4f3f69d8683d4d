"""A program as plain torch, event by event, with the comparisons after each."""

from functools import partial

from lockstep.oracle.events import Event
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM
from lockstep.properties.conditions import Conditions
from lockstep.properties.events import event_words, facet_of
from lockstep.properties.implementations import Implementation
from lockstep.properties.script import checkpoints, optimizers, throughout
from lockstep.properties.script.construction import construct, equal, optimizer_of_the_caller
from lockstep.properties.script.head import initial_values
from lockstep.properties.script.seen import by_rank, seen
from lockstep.properties.script.writer import Writer


def writer_of(
    implementation: Implementation, scenario: Scenario, expected: Expectation | None, conditions: Conditions
) -> Writer:
    """The writer of a program's script."""
    optimizes = any(facet_of(event).optimizes for event in scenario.program) or bool(conditions.part.saves)
    return Writer(implementation, scenario, expected, conditions, optimizes)


def parts(writer: Writer) -> list[list[str]]:
    """The lines of the construction, followed by those of every event."""
    ranks = range(writer.scenario.world_size)
    at_once = writer.implementation.claims.equal_from == EQUAL_FROM[0]
    makes = "wrapping makes" if at_once else "the first forward makes"
    lines = ["", f"# Every rank begins with values of its own; {makes} them rank 0's."]
    lines += [f"initial = {by_rank([initial_values(writer.scenario, rank) for rank in ranks])}"]
    if writer.scenario.roles:
        lines += [f"role = {list(writer.scenario.roles)}[rank]  # the rank whose samples this one has"]
    lines += throughout.SEEDED if writer.scenario.caller.seeded else []
    lines += construct(writer)
    go_on = [throughout.GO_ON] * writer.scenario.caller.seeded
    lines += go_on
    lines += optimizer_of_the_caller(writer) if writer.made_first else []
    lines += equal(writer) if at_once else []
    parts = [lines + (optimizers.loss_scale(writer) if writer.scaled else [])]
    for number, event in enumerate(writer.scenario.program):
        lines = checkpoints.for_nothing(writer) if number in writer.conditions.part.saves else []
        lines += ["", *(f"# {words}" for words in event_words(writer.scenario, number, writer.expected))]
        state, looks = partial(optimizers.state, writer), number >= writer.looks
        after = seen(writer.scenario, writer.expected, number, state, writer.values, looks)
        done = facet_of(event).lines(writer, number, event)
        lines += _unless_gone(writer, number, event, done + after) + go_on
        parts.append(lines + (equal(writer) if number == 0 and not at_once else []))
    return parts


def _unless_gone(writer: Writer, number: int, event: Event, done: list[str]) -> list[str]:
    """The lines for ranks that still have micro-batches. Ranks that have just run out leave the context of the join."""
    gone = writer.scenario.gone(number)
    if not gone or not done:
        return done
    leaving = [f"if {writer.role} in {gone}:", "    window.close()"] if event.makes_gradients else []
    return [*leaving, f"if {writer.role} not in {gone}:", *(f"    {line}" for line in done)]
