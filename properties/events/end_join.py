"""The end of a join: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Backward, EndJoin, Join
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.script.writer import Writer


def end_join(loop: Loop) -> None:
    """End the join, if there is one. The last ranks first run a micro-batch without the others."""
    if loop.gone is not None:
        last = next(event for event in loop.events[::-1] if isinstance(event, (Join, Backward)))
        if loop.local or isinstance(last, Join) or last.gone != loop.gone:
            loop.backward(Phase(SYNCHRONIZE))
        loop.events.append(EndJoin())
        loop.gone, loop.gradients, loop.averages = None, False, False


END_JOIN = Kind("end join", lambda loop, _: end_join(loop), lambda claims: bool(claims.joins))


class EndJoinFacet(Facet[EndJoin]):
    """The facet of the end of a join."""

    def kinds(self) -> tuple[Kind, ...]:
        return (END_JOIN,)

    def words(self, scenario: Scenario, place: int, event: EndJoin, expected: Expectation | None) -> list[str]:
        return ["end of join: every rank has run out, and has the parameters of the last; gradients become None"]

    def lines(self, writer: Writer, number: int, event: EndJoin) -> list[str]:
        return ["window.close()", *writer.zero_grad(set_to_none=True)]


FACET = EndJoinFacet()
