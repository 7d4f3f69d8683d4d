"""An act of one rank alone: how it is drawn, described and written into a script."""

from lockstep.oracle.events import ActAlone, Evaluate
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.script.writer import Writer


def _act_alone(loop: Loop, phase: Phase) -> None:
    if not loop.broadcasts:
        loop.events.append(ActAlone(phase.shift % len(loop.ranks)))


ACT_ALONE = Kind(
    "act alone",
    _act_alone,
    lambda claims: claims.acts_alone and claims.evaluates,
    apart="laws run the same samples on other ranks, of which that one may be none",
)


class ActAloneFacet(Facet[ActAlone]):
    """The facet of an act of one rank alone."""

    shown_by = SYNCHRONIZE
    reads = True

    def kinds(self) -> tuple[Kind, ...]:
        return (ACT_ALONE,)

    def features(self) -> dict[str, Feature]:
        return {"act alone": Feature(has(ActAlone), (ACT_ALONE,))}

    def words(self, scenario: Scenario, place: int, event: ActAlone, expected: Expectation | None) -> list[str]:
        return [f"rank {event.rank} alone evaluates the model, and takes its state dict"]

    def lines(self, writer: Writer, number: int, event: ActAlone) -> list[str]:
        done = [*writer.evaluate(Evaluate()), *writer.read(number)]
        done += ["getattr(wrapped, 'state_dict', model.state_dict)()"]
        return [f"if {writer.role} == {event.rank}:", *(f"    {line}" for line in done)]


FACET = ActAloneFacet()
