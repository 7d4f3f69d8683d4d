"""P9: clipping by the norm of the full averaged gradient."""

import numpy as np
from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Clip, Finish
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import Inside
from lockstep.properties.claims import Claims
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.features import having
from lockstep.properties.trial import Trial

_TWO_RANKS = (Backward(((0,), (0,))), Finish())
ABOVE = Scenario(2, (Parameter((1,)),), (*_TWO_RANKS, Clip(1.0)))
BELOW = Scenario(2, (Parameter((1,)),), (*_TWO_RANKS, Clip(1024.0)))


def clipping(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios that clip to a norm below, at or above the gradient's.

    They often clip twice, each time with other used parameters.
    """
    features = [("clip",), ("clips twice",), *[("unused", "clips twice")] * (claims.unused is not None)]
    return st.one_of(*(exact_scenarios(claims, has=has) for has in features))


def scales_down(scenario: Scenario, expected: Expectation) -> set[bool]:
    """The values, over all Clip events, of: the norm is certainly larger than the maximum."""
    found, clips = set(), dict(scenario.events(Clip))
    for place, norm in expected.norms.items():
        event, least = clips[place], norm.low if isinstance(norm, Inside) else norm
        found.add(bool(np.asarray(least, dtype=np.float64) > event.max_norm))
    return found


@law("P9", clipping, witnesses={"gradients had to become smaller": ABOVE}, shown_by=having("clip"), share=0.1)
def test_the_reported_norm_is_that_of_the_whole_averaged_gradient(trial: Trial, scenario: Scenario) -> None:
    """Clipping returns, on every rank, the norm of the whole averaged and accumulated gradient, with each tensor
    counted once. Norms 1, 2, 3 and inf are drawn.

    Why: the gradient that is clipped and logged must be the one that the optimizer steps with.

    Broken by norms of local gradients, by counting replicas and tied parameters twice, and by partial norms that are
    not combined: pytorch/pytorch#88955, NVIDIA/Megatron-LM#7227, horovod/horovod#1346.
    """
    expected = trial.expected(scenario)
    trial.witnessed["gradients had to become smaller"] += True in scales_down(scenario, expected)
    run = trial.run(scenario)
    judge.values_equal(run, expected, "The norm is not that of the averaged gradient.", of=("norm",))


@law(
    "P9",
    clipping,
    witnesses={"gradients had to become smaller": ABOVE, "gradients had to stay as they were": BELOW},
    shown_by=having("clip"),
    share=0.1,
)
def test_clipping_scales_every_gradient_by_one_factor(trial: Trial, scenario: Scenario) -> None:
    """Every gradient on every rank is multiplied by min(1, max_norm / (norm + 1e-6)), once, after accumulation.

    Why: a common factor keeps the direction (Pascanu et al., ICML 2013). Different factors drive replicas apart. A
    correct returned norm does not show that anything was scaled.

    Broken by returning the right norm without scaling, and by clipping each micro-batch: areal-project/AReaL#335,
    huggingface/transformers#46113, tenstorrent/tt-metal#17568.
    """
    expected = trial.expected(scenario)
    down = scales_down(scenario, expected)
    trial.witnessed["gradients had to become smaller"] += True in down
    trial.witnessed["gradients had to stay as they were"] += False in down
    run, of = trial.run(scenario), ("gradient", "parameter")
    judge.values_equal(run, expected, "Gradients are not clipped.", of, about="gradient")
