"""Replacing gradients by copies: how it is drawn, described and written into a script."""

from lockstep.oracle.events import CopyGradients
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import SELDOM, Kind, Loop, Phase
from lockstep.properties.script.writer import Writer


def _copy(loop: Loop, phase: Phase) -> None:
    if not loop.gradients:
        loop.backward(phase, not loop.claims.accumulation)
    loop.events.append(CopyGradients())


COPY_GRADIENTS = Kind("copy gradients", _copy, lambda claims: claims.replaced_gradients, apart=SELDOM)


class CopyGradientsFacet(Facet[CopyGradients]):
    """The facet of replacing gradients by copies."""

    shown_by = SYNCHRONIZE

    def kinds(self) -> tuple[Kind, ...]:
        return (COPY_GRADIENTS,)

    def features(self) -> dict[str, Feature]:
        return {"copy gradients": Feature(has(CopyGradients), (COPY_GRADIENTS,))}

    def words(self, scenario: Scenario, place: int, event: CopyGradients, expected: Expectation | None) -> list[str]:
        return ["copy gradients: the caller puts copies in the place of the gradients"]

    def lines(self, writer: Writer, number: int, event: CopyGradients) -> list[str]:
        return ["for p in set(tensors().values()):", "    if p.grad is not None:", "        p.grad = p.grad.clone()"]


FACET = CopyGradientsFacet()
