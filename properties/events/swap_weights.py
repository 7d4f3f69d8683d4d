"""An evaluation with other weights: how it is drawn, described and written into a script."""

import numpy as np

from lockstep.oracle.events import Backward, Evaluate, Step, SwapWeights
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has, in_turn
from lockstep.properties.events.loop import SELDOM, Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.script.writer import Writer
from lockstep.properties.seen import OTHER_WEIGHTS


def _swap(loop: Loop, phase: Phase) -> None:
    if not loop.broadcasts:
        loop.settled(phase)
        loop.events.append(SwapWeights())


SWAP_WEIGHTS = Kind("swap weights", _swap, lambda claims: claims.swaps_weights and claims.evaluates, apart=SELDOM)


class SwapWeightsFacet(Facet[SwapWeights]):
    """The facet of swapped weights."""

    shown_by = SYNCHRONIZE
    reads = True

    def kinds(self) -> tuple[Kind, ...]:
        return (SWAP_WEIGHTS,)

    def features(self) -> dict[str, Feature]:
        return {
            "swap weights": Feature(has(SwapWeights), (SWAP_WEIGHTS,)),
            "swap between steps": Feature(
                lambda s: in_turn(s, Step, SwapWeights, Backward, Step), (STEP, SWAP_WEIGHTS, SYNCHRONIZE, STEP)
            ),
        }

    def words(self, scenario: Scenario, place: int, event: SwapWeights, expected: Expectation | None) -> list[str]:
        weights = f"other weights, {OTHER_WEIGHTS:g} everywhere"
        return [f"swap weights: an evaluation with {weights}, which the caller swaps in and out again"]

    def lines(self, writer: Writer, number: int, event: SwapWeights) -> list[str]:
        lines = ["originals = {p: p.detach().clone() for p in tensors().values()}", "for p in originals:"]
        lines += [f"    p.data.fill_({OTHER_WEIGHTS})", *writer.evaluate(Evaluate())]
        lines += writer.same_as_read([np.full(each.shape, OTHER_WEIGHTS) for each in writer.scenario.parameters])
        return [*lines, "for p, original in originals.items():", "    p.data.copy_(original)"]


FACET = SwapWeightsFacet()
