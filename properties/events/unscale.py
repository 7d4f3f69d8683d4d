"""Dividing gradients by the loss scale: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Unscale
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.facet import Facet
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.script import optimizers
from lockstep.properties.script.writer import Writer


def unscaled(loop: Loop, phase: Phase) -> None:
    """Unscale the gradients, if there is a loss scale and this was not done since the last step."""
    if loop.caller.loss_scale is not None and not loop.unscaled:
        loop.averaged(phase)
        loop.events.append(Unscale())
        loop.unscaled = True


UNSCALE = Kind("unscale", unscaled)


class UnscaleFacet(Facet[Unscale]):
    """The facet of unscaling."""

    def kinds(self) -> tuple[Kind, ...]:
        return (UNSCALE,)

    def words(self, scenario: Scenario, place: int, event: Unscale, expected: Expectation | None) -> list[str]:
        return ["unscale: gradients are divided by the loss scale"]

    def lines(self, writer: Writer, number: int, event: Unscale) -> list[str]:
        return optimizers.unscale(writer)


FACET = UnscaleFacet()
