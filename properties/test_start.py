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
from lockstep.properties.strategies.features import anything, having
from lockstep.properties.strategies.variants import asking
from lockstep.properties.trial import Trial

OWN = "ranks had random numbers of their own"
ONE_BATCH = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()), caller=Caller(seeded=True))


@law("P16", exact_scenarios, shown_by=anything, share=0.3)
def test_every_rank_starts_with_the_parameters_of_rank_0(trial: Trial, scenario: Scenario) -> None:
    """After construction every parameter, frozen ones too, has rank 0's values; or after the first forward, if that is
    claimed.

    Why: averaged gradients keep equal replicas equal and unequal ones unequal. Ranks begin with different values, so a
    parameter that is not broadcast shows.

    Broken by leaving out frozen parameters, and by another root: speechbrain/speechbrain#2814, horovod/horovod#2685.
    """
    expected = trial.expected(scenario)
    judge.starts_equal(trial.run(scenario), expected.initial, "Ranks do not start with rank 0's parameters.")


@law(
    "P16",
    lambda claims: exact_scenarios(claims, has=("buffers",)),
    needs=lambda claims: claims.buffers is not None,
    shown_by=having("buffers"),
    share=0.8,
)
def test_buffers_are_those_of_rank_0_when_it_is_claimed(trial: Trial, scenario: Scenario) -> None:
    """Buffers are rank 0's after construction and, if claimed, at each forward after a synchronization.

    Why: running statistics decide the outputs of a model in evaluation. Each forward adds another number on each rank,
    so a missing broadcast, or one at a wrong moment, shows.

    Broken by a switch that turned off the initial broadcast as well: pytorch/pytorch#111138.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Buffers are not what is claimed.")


def seeded(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any two features and seeded random numbers. Joins are left out.

    A rank that has run out of micro-batches observes nothing.
    """
    return asking(with_any(replace(claims, joins=()), 2), seeded=True)


@law(
    "P16",
    seeded,
    needs=lambda claims: claims.leaves_random_numbers,
    witnesses={OWN: ONE_BATCH},
    shown_by=having("seeded"),
)
def test_random_numbers_go_on_where_the_caller_left_them(trial: Trial, scenario: Scenario) -> None:
    """Wrapping a model and training with it draws no random numbers of torch, NumPy or Python, and seeds no generator.

    Why: a caller seeds each rank differently, so that ranks drop out and augment differently, and runs can be repeated.
    Seeding all ranks alike, or giving all of them rank 0's state, undoes that, and no gradient shows it.

    Broken by both: huggingface/accelerate#114, pytorch/pytorch#141223.
    """
    run = trial.run(scenario)
    trial.witnessed[OWN] += len({str(seen["upcoming"][-2]) for seen in run.observations}) == scenario.world_size > 1
    judge.random_numbers_go_on(run, "Random numbers do not go on where the caller left them.")
