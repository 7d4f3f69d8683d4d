"""P1 and P5 for ranks with unequal numbers of micro-batches, as torch's Join context allows."""

from hypothesis import strategies as st

from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.judging import judge
from lockstep.properties.judging.matching import same_collectives
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.features import having
from lockstep.properties.trial import Trial


def joins(claims: Claims) -> bool:
    """True if ranks may run out of micro-batches."""
    return bool(claims.joins)


def running_out(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which a rank runs out of micro-batches before others, once or, like in a second epoch, twice.

    This includes rank 0 while others step, and in the second epoch the ranks that were last in the first.
    """
    kinds = ("joins", "joins twice", "step without rank 0", "others stay")
    return st.one_of(*(exact_scenarios(claims, has=(kind,)) for kind in kinds))


@law("P1", running_out, needs=joins, shown_by=having("joins"), share=0.6)
def test_ranks_that_run_out_of_micro_batches_count_as_zero_in_the_mean_claimed(
    trial: Trial, scenario: Scenario
) -> None:
    """While some ranks still have micro-batches, their gradients are summed and divided by the number of all ranks, or
    of the remaining ones, as the caller chooses. In the end every rank has the parameters of the last.

    Why: divided by all ranks, every sample has the same weight. Divided by the remaining ranks, a step is that of a
    smaller world. A rank that is gone contributes nothing. pytorch/pytorch#38174 defines both.

    Broken by uninitialized memory that is read as the parameters used by a rank that is gone: torch's DDP
    (docs/findings). No report of it is known.
    """
    judge.values_equal(
        *trial.run_and_expect(scenario), "Where ranks ran out of micro-batches, values are not what the others' make."
    )


def running_out_while_accumulating(claims: Claims) -> st.SearchStrategy[Scenario]:
    """The same, with micro-batches inside `no_sync` if claimed."""
    also = ("accumulation",) if claims.accumulation else ()
    return exact_scenarios(claims, has=("joins", *also)) | exact_scenarios(claims, has=("joins twice", *also))


@law("P5", running_out_while_accumulating, needs=joins, shown_by=having("joins"), share=0.6)
def test_ranks_that_have_run_out_take_part_in_every_collective_of_the_others(trial: Trial, scenario: Scenario) -> None:
    """From the first rank that runs out of micro-batches to the last, all ranks call the same collectives.

    Why: a collective that one rank does not join waits forever. Only the other ranks know if they will reduce after a
    micro-batch, so they must say so.

    Broken where ranks that were done took part in a reduction that `no_sync` had postponed: pytorch/pytorch#44427.
    """
    same_collectives(trial.run(scenario), "Ranks that have run out of micro-batches do something else.")
