"""P3: gradient accumulation."""

from dataclasses import replace

from hypothesis import strategies as st

from oracle.interpreter import interpret
from oracle.program import Backward, Scenario
from properties import judge
from properties.claims import Claims
from properties.law import law
from properties.strategies import exact_scenarios
from properties.trial import Trial


def accumulating(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with at least one micro-batch inside `no_sync`."""
    return exact_scenarios(claims, has=("accumulation",))


@law("P3", accumulating, needs=lambda claims: claims.accumulation)
def test_no_sync_accumulates_and_then_counts_once(trial: Trial, scenario: Scenario) -> None:
    """What was accumulated under `no_sync` is in the next mean, each micro-batch once; until then nothing is sent.

    Why: averaging is linear, so it may wait; sending early would count twice or cost what `no_sync` saves. Broken by
    reducing only the last micro-batch, or the accumulated gradient again: PaddlePaddle/Paddle#29920,
    NVIDIA/Megatron-LM#7186, pytorch/pytorch#69031.
    """
    expected = interpret(scenario, trial.claims.averaging, trial.claims.unused or "untouched")
    run = trial.run(scenario)
    judge.values_equal(run, expected, "Accumulated micro-batches do not count once each.")
    judge.runs_communicate_alike(run, trial.run(without_local(scenario)), "Something is sent inside no_sync.")


def without_local(scenario: Scenario) -> Scenario:
    """The same scenario without its micro-batches inside `no_sync`."""
    kept = (event for event in scenario.program if not isinstance(event, Backward) or event.synchronize)
    return replace(scenario, program=tuple(kept))
