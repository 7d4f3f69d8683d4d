"""Setting gradients to None or to zero: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Backward, ZeroGrad
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import LOCAL, SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.script.writer import Writer


def _drop(loop: Loop, phase: Phase) -> None:
    loop.averaged(phase)
    loop.zero()


def _zero(loop: Loop, phase: Phase) -> None:
    loop.averaged(phase)
    loop.zero(False)


def _drop_window(loop: Loop, phase: Phase) -> None:
    if not loop.broadcasts:
        if not loop.local:
            loop.backward(phase, False)
        loop.zero(phase.shift % 2 == 0)


DROP_GRADIENTS = Kind("drop gradients", _drop, often=2, while_joined=True)
ZERO_GRADIENTS = Kind("zero gradients", _zero, often=2, while_joined=True)
DROP_WINDOW = Kind("drop window", _drop_window, lambda claims: claims.drops_windows, takes=(LOCAL,))


class ZeroGradFacet(Facet[ZeroGrad]):
    """The facet of zeroing gradients."""

    def kinds(self) -> tuple[Kind, ...]:
        return DROP_GRADIENTS, ZERO_GRADIENTS, DROP_WINDOW

    def features(self) -> dict[str, Feature]:
        return {
            "zero grad": Feature(_zeroed_in_between, (DROP_GRADIENTS, SYNCHRONIZE)),
            "drop window": Feature(_drops_a_window, (DROP_WINDOW,)),
        }

    def words(self, scenario: Scenario, place: int, event: ZeroGrad, expected: Expectation | None) -> list[str]:
        return ["zero_grad: gradients become " + ("None" if event.set_to_none else "zero")]

    def lines(self, writer: Writer, number: int, event: ZeroGrad) -> list[str]:
        return writer.zero_grad(event.set_to_none)


FACET = ZeroGradFacet()


def _zeroed_in_between(scenario: Scenario) -> bool:
    """True if gradients are set to None or zero between two micro-batches."""
    return any(scenario.standings[place + 1].window for place in scenario.places(Backward))


def _drops_a_window(scenario: Scenario) -> bool:
    """True if gradients accumulated inside `no_sync` are set to None or zero."""
    zeroing = (place for place, batch in scenario.events(Backward) if batch.zeroes is not None)
    before = (scenario.standings[place] for place in (*scenario.places(ZeroGrad), *zeroing))
    return any(standing.local and standing.gradients for standing in before)
