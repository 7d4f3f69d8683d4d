"""Writing values into parameters: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Backward, Step, Write
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import MASTERS
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has, in_turn
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.naming import names
from lockstep.properties.script.head import place as held_at
from lockstep.properties.script.writer import Writer


def _write(loop: Loop, phase: Phase) -> None:
    if not loop.caller.masters:
        loop.settled(phase)
        loop.events.append(Write((loop.tensor(phase),) if phase.twist % 2 == 0 else loop.tensors))


WRITE = Kind(
    "write",
    _write,
    lambda claims: claims.writes_weights and claims.masters != MASTERS,
    apart="no master would hear of it, so that programs with one have none",
    rules_out=lambda claims: ("masters",),
)


class WriteFacet(Facet[Write]):
    """The facet of writing into parameters."""

    shown_by = SYNCHRONIZE

    def kinds(self) -> tuple[Kind, ...]:
        return (WRITE,)

    def features(self) -> dict[str, Feature]:
        return {
            "write": Feature(has(Write), (WRITE,)),
            "write between steps": Feature(
                lambda s: in_turn(s, Step, Write, Backward, Step), (STEP, WRITE, SYNCHRONIZE, STEP)
            ),
        }

    def words(self, scenario: Scenario, place: int, event: Write, expected: Expectation | None) -> list[str]:
        return [f"write: the caller writes into {names(event.parameters)} the negative of what is there"]

    def lines(self, writer: Writer, number: int, event: Write) -> list[str]:
        written = ", ".join(held_at(writer.scenario, index) for index in event.parameters)
        return [f"for p in [{written}]:", "    p.data.copy_(0 - p.data)"]


FACET = WriteFacet()
