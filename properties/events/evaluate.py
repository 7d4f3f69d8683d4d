"""A forward without a backward: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Evaluate
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.script.writer import Writer


def evaluation(claims: Claims, inference: bool, form: int) -> Evaluate:
    """An evaluation in one of four forms: usual, inside `no_sync`, in training mode, or both, as far as claimed."""
    stays, local = (form // 2 % 2, form % 2) if claims.measures_losses else (0, 0)
    return Evaluate(inference, not stays, not (local and claims.accumulation))


def _evaluate(loop: Loop, phase: Phase, inference: bool = False) -> None:
    if not loop.broadcasts:
        loop.settled(phase)
        loop.events.append(evaluation(loop.claims, inference, phase.twist))


EVALUATE = Kind("evaluate", _evaluate, lambda claims: claims.evaluates, forward=True)
INFER = Kind("infer", lambda loop, phase: _evaluate(loop, phase, True), lambda claims: claims.infers, forward=True)


class EvaluateFacet(Facet[Evaluate]):
    """The facet of an evaluation."""

    shown_by = SYNCHRONIZE
    reads = True

    def kinds(self) -> tuple[Kind, ...]:
        return EVALUATE, INFER

    def features(self) -> dict[str, Feature]:
        return {
            "evaluate": Feature(has(Evaluate), (EVALUATE,)),
            "infer": Feature(lambda s: any(event.inference for _, event in s.events(Evaluate)), (INFER,)),
        }

    def words(self, scenario: Scenario, place: int, event: Evaluate, expected: Expectation | None) -> list[str]:
        without = "in inference mode" if event.inference else "without autograd"
        mode = "in evaluation mode" if event.switch else "in the mode of training"
        inside = "" if event.synchronize else ", inside no_sync"
        return [f"evaluate: a forward of all parameters, {without} and {mode}{inside}"]

    def lines(self, writer: Writer, number: int, event: Evaluate) -> list[str]:
        return [*writer.evaluate(event), *writer.read(number)]


FACET = EvaluateFacet()
