"""The end of a synchronization: how it is described and written into a script."""

from lockstep.oracle.events import Finish
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.facet import Facet
from lockstep.properties.events.loop import Kind
from lockstep.properties.script import throughout
from lockstep.properties.script.writer import Writer, finishes


class FinishFacet(Facet[Finish]):
    """The facet of the end of a synchronization."""

    undrawn = "it follows each micro-batch that synchronizes"

    def kinds(self) -> tuple[Kind, ...]:
        return ()

    def words(self, scenario: Scenario, place: int, event: Finish, expected: Expectation | None) -> list[str]:
        return ["finish the synchronization"]

    def lines(self, writer: Writer, number: int, event: Finish) -> list[str]:
        if writer.implementation.plain:
            return [] if writer.implementation.claims.averages_in_step else ["average()"]
        return finishes(writer) + (throughout.kept(writer, number) if writer.scenario.caller.keeps_gradients else [])


FACET = FinishFacet()
