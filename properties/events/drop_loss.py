"""A forward whose loss is not used: how it is drawn, described and written into a script."""

from collections.abc import Iterator

from lockstep.oracle.events import DropLoss
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.script.writer import Writer


def _drop(loop: Loop, phase: Phase) -> None:
    if not loop.broadcasts and loop.trained:
        loop.events.append(DropLoss(not (phase.twist % 2 and loop.claims.accumulation)))


DROP_LOSS = Kind("drop loss", _drop, lambda claims: claims.drops_losses, forward=True)


class DropLossFacet(Facet[DropLoss]):
    """The facet of a forward whose loss is not used."""

    shown_by = SYNCHRONIZE

    def kinds(self) -> tuple[Kind, ...]:
        return (DROP_LOSS,)

    def features(self) -> dict[str, Feature]:
        return {"drop loss": Feature(has(DropLoss), (DROP_LOSS,))}

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        local = DropLoss(synchronize=False) in scenario.program
        return "a forward inside no_sync" if local and not claims.accumulation else ""

    def words(self, scenario: Scenario, place: int, event: DropLoss, expected: Expectation | None) -> list[str]:
        return [f"drop loss: a forward, of NaN, whose loss is dropped{'' if event.synchronize else ', inside no_sync'}"]

    def lines(self, writer: Writer, number: int, event: DropLoss) -> list[str]:
        forward = writer.call("dict.fromkeys(tensors(), nan)", "trained")
        lines = ["trained = [name for name, p in tensors().items() if p.requires_grad][::-1]"]
        return [*lines, *([forward] if event.synchronize else ["with wrapped.no_sync():", f"    {forward}"])]

    def simpler(self, event: DropLoss) -> Iterator[DropLoss]:
        yield DropLoss()


FACET = DropLossFacet()
