"""Clipping gradients by their global norm: how it is drawn, described and written into a script."""

from collections.abc import Sequence
from dataclasses import replace

from lockstep.oracle.events import Backward, Clip, ZeroGrad
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import Inside
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import OVERFLOW
from lockstep.properties.events.facet import Facet, Feature, in_turn
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.events.unscale import UNSCALE
from lockstep.properties.events.zero_grad import DROP_GRADIENTS
from lockstep.properties.expected import known
from lockstep.properties.script.writer import Writer

INF = float("inf")
NORMS_DRAWN = (2.0, 1.0, INF, 3.0)  # the usual one comes first
ABOVE = 2.0**46  # above every norm: the lattice has values below 2**38, a model fewer than 2**8 elements


def _clip(loop: Loop, phase: Phase) -> None:
    """Clip to a norm below, at or above that of the gradients.

    After an overflow, do as any loop with a loss scale: unscale and clip the gradients, skip the step, drop the
    gradients.
    """
    loop.settled(phase)
    if loop.infinite and loop.unscaled:
        loop.zero()  # Unscale may have come before the overflow
    loop.averaged(phase)
    if loop.infinite:
        UNSCALE.write(loop, Phase(UNSCALE))
    exact = loop.exact and not loop.infinite  # with an infinite norm, exactness does not matter
    empty = any(parameter.count == 0 for parameter in loop.model)
    norms = [norm for norm in NORMS_DRAWN if (norm in (1, INF) or not exact) and not (empty and norm == INF)]
    relation = phase.shift % 3 if not exact else 2
    if relation == 1 and not loop.infinite:
        loop.clips_at.append(len(loop.events))
    above = (ABOVE, INF)[phase.shift // 3 % 2]
    loop.events.append(Clip(1.0 if relation == 0 else above, norms[phase.twist % len(norms)]))
    if loop.infinite:
        STEP.write(loop, Phase(STEP))
        if loop.gradients:
            loop.zero()


CLIP = Kind("clip", _clip, while_joined=True)


class ClipFacet(Facet[Clip]):
    """The facet of clipping."""

    def kinds(self) -> tuple[Kind, ...]:
        return (CLIP,)

    def features(self) -> dict[str, Feature]:
        return {
            "clip": Feature(lambda s: False in _clips_an_overflow(s), (CLIP,)),
            "clips twice": Feature(lambda s: in_turn(s, Clip, ZeroGrad, Backward, Clip), (CLIP, DROP_GRADIENTS, CLIP)),
            "clipped overflow": Feature(
                lambda s: True in _clips_an_overflow(s), (OVERFLOW, CLIP), options=("loss scale",)
            ),
        }

    def words(self, scenario: Scenario, place: int, event: Clip, expected: Expectation | None) -> list[str]:
        after = "; what becomes of them after an overflow is open" if scenario.overflowed(place) else ""
        return [f"clip: gradients to a global {event.norm_type:g}-norm of at most {event.max_norm:g}{after}"]

    def lines(self, writer: Writer, number: int, event: Clip) -> list[str]:
        most = f"{event.max_norm!r}" + f", {event.norm_type!r}" * (event.norm_type != 2.0)
        if writer.in_pieces:
            return [f"norm = clip({most})"]
        if "clip_grad_norm_" in writer.implementation.offers:
            # A tensor, or a number, which has all digits of float64.
            read = "torch.as_tensor(norm, dtype=None if torch.is_tensor(norm) else torch.float64)"
            return [f"norm = wrapped.clip_grad_norm_({most})", f"norm = {read}.reshape(())"]
        return [f"norm = torch.nn.utils.clip_grad_norm_({writer.asked}.parameters(), {most})"]


FACET = ClipFacet()


def _clips_an_overflow(scenario: Scenario) -> set[bool]:
    """The values, over all Clip events, of: gradients have overflowed there."""
    return {bool(scenario.overflowed(place)) for place in scenario.places(Clip)}


def clipping_at_the_norm(scenario: Scenario, places: Sequence[int], claims: Claims) -> Scenario:
    """The scenario with the Clip events at these places clipping to exactly the norm that the gradients have there."""
    for place in places:
        if (expected := known(scenario, claims)) is None:
            return scenario
        norm, event = expected.norms[place], dict(scenario.events(Clip))[place]
        most = float(norm.low if isinstance(norm, Inside) else norm)  # type: ignore[arg-type]  # there is one
        if 2.0**-126 <= most < INF:
            program = (*scenario.program[:place], replace(event, max_norm=most), *scenario.program[place + 1 :])
            scenario = replace(scenario, program=program)
    return scenario
