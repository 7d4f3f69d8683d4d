"""Saving, constructing anew and loading: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Backward, SaveAndLoad, Step
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM, Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.script import checkpoints, optimizers
from lockstep.properties.script.construction import construct
from lockstep.properties.script.writer import Writer


def _save_and_load(loop: Loop, phase: Phase) -> None:
    _loaded(loop, phase, everything=loop.claims.saves_state and phase.shift % 3 != 2)


def _go_on(loop: Loop, phase: Phase) -> None:
    _loaded(loop, phase, everything=True)


def _loaded(loop: Loop, phase: Phase, everything: bool) -> None:
    loop.settled(phase)
    loop.events.append(SaveAndLoad(everything))
    loop.built_at = len(loop.events)
    loop.dropped()
    loop.unscaled = loop.kept = False
    loop.when_wrapped = set(loop.trained)


def _buffers_of_its_own(claims: Claims) -> tuple[str, ...]:
    """The option for buffers, if each rank has its own and the next first forward may replace them by rank 0's."""
    return ("buffers",) if claims.equal_from != EQUAL_FROM[0] and claims.buffers != "each" else ()


SAVE_AND_LOAD = Kind("save and load", _save_and_load, rules_out=_buffers_of_its_own)
GO_ON = Kind(
    "go on",
    _go_on,
    lambda claims: claims.saves_state,
    apart="what is saved and loaded is mostly everything anyway",
    rules_out=_buffers_of_its_own,
)

UNSAVED = "the state of an optimizer that cannot be saved"


class SaveAndLoadFacet(Facet[SaveAndLoad]):
    """The facet of saving, constructing anew and loading."""

    shown_by = SYNCHRONIZE
    optimizes = True

    def kinds(self) -> tuple[Kind, ...]:
        return SAVE_AND_LOAD, GO_ON

    def features(self) -> dict[str, Feature]:
        again = (SYNCHRONIZE, STEP)
        return {
            "save and load": Feature(has(SaveAndLoad), (SAVE_AND_LOAD,)),
            "go on": Feature(_goes_on, (*again, GO_ON, *again)),
        }

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        if not claims.saves_state and any(event.optimizer for _, event in scenario.events(SaveAndLoad)):
            return UNSAVED
        saves = bool(scenario.buffers) and scenario.has(SaveAndLoad)
        if claims.equal_from != EQUAL_FROM[0] and not scenario.broadcast_buffers and saves:
            return "buffers of each rank's own that are saved, where the first forward may make them rank 0's"
        return ""

    def words(self, scenario: Scenario, place: int, event: SaveAndLoad, expected: Expectation | None) -> list[str]:
        kept = "everything" if event.optimizer else "the weights alone"
        return [f"save {kept}, build model and implementation anew, load"]

    def lines(self, writer: Writer, number: int, event: SaveAndLoad) -> list[str]:
        made = writer.in_pieces or writer.made_before
        optimizer = optimizers.make(writer) if event.optimizer and not made else []
        lines = [*checkpoints.save(writer, event.optimizer), *construct(writer), *optimizer]
        return [*lines, *checkpoints.take_up(writer, event.optimizer)]


FACET = SaveAndLoadFacet()


def _goes_on(scenario: Scenario) -> bool:
    """True if a step precedes saving and loading everything, and another one with new gradients follows."""
    kinds = [type(event) for event in scenario.program]
    places = [place for place, event in enumerate(scenario.program) if event == SaveAndLoad()]
    return any(Step in kinds[:place] and Backward in kinds[place:] and Step in kinds[place:] for place in places)
