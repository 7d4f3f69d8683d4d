"""A deep copy of the model: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Duplicate, Step
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has, in_turn
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.script.writer import Writer


def _duplicate(loop: Loop, phase: Phase) -> None:
    if not loop.broadcasts:
        loop.events.append(Duplicate())


DUPLICATE = Kind(
    "duplicate",
    _duplicate,
    lambda claims: claims.copied_models,
    apart="a copy is held to the end, where laws count the bytes that a rank holds",
)


class DuplicateFacet(Facet[Duplicate]):
    """The facet of deep copies of the model."""

    shown_by = SYNCHRONIZE
    reads = True

    def kinds(self) -> tuple[Kind, ...]:
        return (DUPLICATE,)

    def features(self) -> dict[str, Feature]:
        return {
            "duplicate": Feature(has(Duplicate), (DUPLICATE,)),
            "duplicate around a step": Feature(
                lambda s: in_turn(s, Duplicate, Step, Duplicate), (DUPLICATE, STEP, DUPLICATE)
            ),
        }

    def words(self, scenario: Scenario, place: int, event: Duplicate, expected: Expectation | None) -> list[str]:
        return ["duplicate: the caller makes a deep copy of the model, and evaluates each that it has made"]

    def lines(self, writer: Writer, number: int, event: Duplicate) -> list[str]:
        made = [each for each in writer.scenario.places(Duplicate) if each <= number]
        lines = [*["duplicates = []"] * (len(made) == 1), "duplicates += [copy.deepcopy(model)]"]
        for which, then in enumerate(made):
            writer.calls = f"duplicates[{which}].eval()"
            forward = writer.call("dict.fromkeys(tensors(), 0.0)", "list(tensors())")
            lines += ["read.clear()", "with torch.no_grad():", f"    {forward}", *writer.read(then)]
        writer.calls = "wrapped"
        return lines


FACET = DuplicateFacet()
