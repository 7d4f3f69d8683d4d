"""Moving the model's tensors to new memory: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Backward, Move, Step
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has, in_turn
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.script.writer import Writer


def _move(loop: Loop, phase: Phase) -> None:
    loop.settled(phase)
    loop.events.append(Move())


MOVE = Kind("move", _move, lambda claims: claims.moved_parameters)


class MoveFacet(Facet[Move]):
    """The facet of moving the model."""

    shown_by = SYNCHRONIZE

    def kinds(self) -> tuple[Kind, ...]:
        return (MOVE,)

    def features(self) -> dict[str, Feature]:
        return {
            "move": Feature(has(Move), (MOVE,)),
            "move between steps": Feature(
                lambda s: in_turn(s, Step, Move, Backward, Step), (STEP, MOVE, SYNCHRONIZE, STEP)
            ),
        }

    def words(self, scenario: Scenario, place: int, event: Move, expected: Expectation | None) -> list[str]:
        return ["move: the model's parameters, gradients and buffers move to new memory"]

    def lines(self, writer: Writer, number: int, event: Move) -> list[str]:
        return ["model._apply(torch.clone)  # to new memory, as .to(device) does"]


FACET = MoveFacet()
