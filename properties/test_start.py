"""P16: the same start on every rank, and buffers."""

from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.variants import asking
from lockstep.properties.trial import Trial

OWN = "ranks had random numbers of their own"
ONE_BATCH = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()), caller=Caller(seeded=True))


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
    judge.values_equal(*trial.run_and_expect(scenario), "Buffers are not what is claimed.")


def seeded(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any two features and random numbers that are seeded; no ranks that are gone, which look at
    nothing.
    """
    return asking(with_any(replace(claims, joins=()), 2), seeded=True)


@law("P16", seeded, needs=lambda claims: claims.leaves_random_numbers, witnesses={OWN: ONE_BATCH})
def test_random_numbers_go_on_where_the_caller_left_them(trial: Trial, scenario: Scenario) -> None:
    """Wrapping a model, and whatever is done with it, draws no random numbers of torch, NumPy or Python and seeds none.

    Why: a caller seeds each rank otherwise, so that they drop out and augment differently, and a run can be repeated.
    Who seeds all ranks alike, or gives all rank 0's state, undoes that, and no gradient shows it. Broken by both:
    huggingface/accelerate#114, pytorch/pytorch#141223.
    """
    run = trial.run(scenario)
    trial.witnessed[OWN] += len({str(seen["upcoming"][-2]) for seen in run.observations}) == scenario.world_size > 1
    judge.random_numbers_go_on(run, "Random numbers do not go on where the caller left them.")
