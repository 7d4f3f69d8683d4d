"""Saving everything for later: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Save
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.facet import Facet
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.script import checkpoints
from lockstep.properties.script.writer import Writer


def _save(loop: Loop, phase: Phase) -> None:
    loop.settled(phase)
    loop.events.append(Save())
    loop.kept = True


SAVE = Kind("save", _save, lambda claims: claims.reloads)


class SaveFacet(Facet[Save]):
    """The facet of saving for later."""

    optimizes = True

    def kinds(self) -> tuple[Kind, ...]:
        return (SAVE,)

    def words(self, scenario: Scenario, place: int, event: Save, expected: Expectation | None) -> list[str]:
        return ["save everything, for later"]

    def lines(self, writer: Writer, number: int, event: Save) -> list[str]:
        return checkpoints.save(writer)


FACET = SaveFacet()
