"""Freezing parameters or training them again: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Freeze
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.naming import names
from lockstep.properties.script.head import place as held_at
from lockstep.properties.script.writer import Writer


def _freeze(loop: Loop, phase: Phase) -> None:
    """Freeze one tensor, or train it again. At least one parameter stays trained.

    A tensor is trained again if it was trainable when the model was wrapped, or if training any frozen one is claimed.
    Gradients are dropped right before or right after, so that only parameters trained then count.
    """
    tensor = loop.tensor(phase)
    others = {index for index, parameter in enumerate(loop.model) if tensor in (index, parameter.tied)}
    left = tuple(index for index in loop.trained if index not in others)
    thaws = tensor not in loop.trained
    if not left or (thaws and tensor not in loop.when_wrapped and not loop.claims.unfreezing):
        return
    loop.settled(phase)
    if loop.gradients and phase.twist % 2 == 0:
        loop.zero()
    loop.events.append(Freeze((tensor,), not thaws))
    if loop.gradients:
        loop.zero()
    loop.trained = tuple(sorted({*loop.trained, *others})) if thaws else left


FREEZE = Kind("freeze", _freeze, lambda claims: claims.freezing)


class FreezeFacet(Facet[Freeze]):
    """The facet of freezing."""

    shown_by = SYNCHRONIZE

    def kinds(self) -> tuple[Kind, ...]:
        return (FREEZE,)

    def features(self) -> dict[str, Feature]:
        return {"freeze": Feature(has(Freeze), (FREEZE,), parameters=2)}

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        later = any(not standing.trained <= standing.when_wrapped for standing in scenario.standings)
        return "training what was frozen when it was wrapped" if later and not claims.unfreezing else ""

    def words(self, scenario: Scenario, place: int, event: Freeze, expected: Expectation | None) -> list[str]:
        return [f"{'freeze' if event.frozen else 'train again'}: {names(event.parameters)}"]

    def lines(self, writer: Writer, number: int, event: Freeze) -> list[str]:
        writer.frozen = event.of_frozen(writer.frozen)
        lines = [f"{held_at(writer.scenario, i)}.requires_grad_({not event.frozen})" for i in event.parameters]
        return lines + (writer.watch(event.parameters) if writer.raises and not event.frozen else [])


FACET = FreezeFacet()
