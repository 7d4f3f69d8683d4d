"""Loading a saved state into the present objects: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Backward, Evaluate, Load, Save, Step
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.evaluate import EVALUATE
from lockstep.properties.events.facet import Facet, Feature, has, in_turn
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.save import SAVE
from lockstep.properties.events.save_and_load import UNSAVED
from lockstep.properties.events.step import STEP
from lockstep.properties.script import checkpoints
from lockstep.properties.script.writer import Writer


def _load(loop: Loop, phase: Phase) -> None:
    loop.settled(phase)
    if not loop.kept:
        SAVE.write(loop, phase)
    loop.events.append(Load(loop.claims.saves_state and phase.shift % 3 != 2))
    loop.dropped()
    loop.unscaled = False


LOAD = Kind("load", _load, lambda claims: claims.reloads)


class LoadFacet(Facet[Load]):
    """The facet of loading into the present objects."""

    shown_by = SYNCHRONIZE

    def kinds(self) -> tuple[Kind, ...]:
        return (LOAD,)

    def features(self) -> dict[str, Feature]:
        return {
            "save, load": Feature(has(Save, Load), (SAVE, LOAD)),
            "go back": Feature(
                lambda s: in_turn(s, Save, Step, Load, Backward, Step),
                (SAVE, SYNCHRONIZE, STEP, LOAD, SYNCHRONIZE, STEP),
            ),
            "evaluate, go back": Feature(
                lambda s: in_turn(s, Save, Step, Evaluate, Load, Backward),
                (SAVE, SYNCHRONIZE, STEP, EVALUATE, LOAD, SYNCHRONIZE),
            ),
        }

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        saved = claims.saves_state or not any(event.optimizer for _, event in scenario.events(Load))
        return "" if saved else UNSAVED

    def words(self, scenario: Scenario, place: int, event: Load, expected: Expectation | None) -> list[str]:
        if event.optimizer:
            return ["load all that was saved into model and optimizer as they are there; gradients become None"]
        return ["load the saved weights into the model that is there; the rest begins afresh, without gradients"]

    def lines(self, writer: Writer, number: int, event: Load) -> list[str]:
        afresh = checkpoints.at_the_start(writer) if writer.in_pieces and not event.optimizer else []
        return [*writer.zero_grad(set_to_none=True), *checkpoints.take_up(writer, event.optimizer), *afresh]


FACET = LoadFacet()
