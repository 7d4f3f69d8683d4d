"""P16: the same start on every rank, and buffers."""

from oracle.program import Scenario
from properties.judging import judge
from properties.law import law
from properties.strategies import exact_scenarios
from properties.trial import Trial


@law("P16", exact_scenarios)
def test_every_rank_starts_with_the_parameters_of_rank_0(trial: Trial, scenario: Scenario) -> None:
    """After construction every parameter, frozen ones too, is what it was on rank 0; or after the first forward, where
    that is claimed.

    Why: averaged gradients keep equal replicas equal and unequal ones apart. Ranks begin with different values, so what
    is not broadcast shows. Broken by leaving out frozen parameters, by another root: speechbrain/speechbrain#2814,
    horovod/horovod#2685.
    """
    expected = trial.expected(scenario)
    judge.starts_equal(trial.run(scenario), expected.initial, "Ranks do not start with rank 0's parameters.")


@law("P16", lambda claims: exact_scenarios(claims, has=("buffers",)), needs=lambda claims: claims.buffers is not None)
def test_buffers_are_those_of_rank_0_when_it_is_claimed(trial: Trial, scenario: Scenario) -> None:
    """Buffers are rank 0's after construction and, where that is claimed, at each forward after a synchronization.

    Why: running statistics decide what a model computes in evaluation. Each forward adds another number on each rank,
    so buffers that were not brought together, or at the wrong moment, show. Broken by a switch that turned the initial
    broadcast off as well: pytorch/pytorch#111138.
    """
    judge.by_the_oracle(trial, scenario, "Buffers are not what is claimed.")
