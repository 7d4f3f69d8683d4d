"""A law that no example was about says so, and does not hold."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from lockstep.properties.catalogue import every_law
from lockstep.properties.implementations import look_up
from lockstep.properties.law import concerns
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.hold import hold
from lockstep.properties.running.unbroken import NOTHING_DRAWN
from lockstep.properties.trial import TOGETHER, Trial
from lockstep.worlds.contract import Job, Outcome, World

LAWS = every_law()
MEAN = LAWS["test_gradients_equal_the_mean_over_ranks"]
WHOLE_BATCH = LAWS["test_one_step_on_n_ranks_equals_one_step_on_one_rank_with_the_whole_batch"]
ONE_RANK = "lockstep.properties.tests.unsteady:ForOneRank"


def filed(law: Any, trial: Trial, examples: int = 30) -> Any:
    """What a law files of a trial. Some of so many examples are of one rank."""
    records: dict[str, Any] = {}
    hold(law, trial, records.__setitem__, Budget(examples=examples))
    return records["lockstep"]


@pytest.mark.filterwarnings("ignore:.*examples were refused")
def test_what_refuses_two_ranks_has_shown_nothing_of_data_parallelism(sim: World) -> None:
    (implementation,) = look_up([ONE_RANK], sim)
    with pytest.warns(UserWarning, match=f"it never happened that {TOGETHER}"):
        assert filed(MEAN, Trial(implementation, sim))["verdict"] == "shows nothing"


@pytest.mark.filterwarnings("ignore:.*it never happened")
def test_where_most_is_refused_a_warning_says_why(sim: World) -> None:
    (implementation,) = look_up([ONE_RANK], sim)
    with pytest.warns(UserWarning, match="of 30 examples were refused, mostly so: ValueError: one rank, not"):
        filed(MEAN, Trial(implementation, sim))


@pytest.mark.filterwarnings("ignore:.*examples were refused")
def test_a_law_of_which_every_example_is_refused_in_part_shows_nothing(sim: World) -> None:
    """Several ranks run to their end, and the one that they are compared with refuses."""
    (implementation,) = look_up(["lockstep.properties.tests.unsteady:ForSeveralRanks"], sim)
    with pytest.warns(UserWarning, match="a part of every example was refused"):
        assert filed(WHOLE_BATCH, Trial(implementation, sim))["verdict"] == "shows nothing"


def test_what_claims_one_rank_alone_is_held_to_that(sim: World) -> None:
    (implementation,) = look_up([ONE_RANK], sim)
    trial = Trial(replace(implementation, claims=replace(implementation.claims, most_ranks=1)), sim)
    assert filed(MEAN, trial)["verdict"] == "holds"


class OneRank:
    """The simulated world, with a single rank: as that of a machine with one GPU."""

    name, device, limit = "sim", "cpu", 60.0
    ranks: int | None = 1

    def __init__(self, sim: World) -> None:
        self._sim = sim

    def run(self, job: Job) -> Outcome:
        assert job.world_size == 1
        return self._sim.run(job)

    def close(self) -> None:
        """It belongs to others."""


def test_a_law_that_needs_two_ranks_is_skipped_where_the_world_has_one(sim: World) -> None:
    (implementation,) = look_up(["lockstep.impls.static_buckets:StaticBuckets"], sim)
    trial = Trial(implementation, OneRank(sim))
    needy = [law for law in LAWS.values() if concerns(law, implementation.claims) and not concerns(law, trial.claims)]
    assert len([law for law in needy if law.number == "P18"]) >= 5
    for law in needy:
        records: dict[str, Any] = {}
        with pytest.raises(pytest.skip.Exception, match="on the sim world: it has 1 rank, and the law takes more"):
            hold(law, trial, records.__setitem__)
        assert records["lockstep"]["verdict"] == "not runnable here"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lockstep.impls.static_buckets:StaticBuckets", "lockstep.impls.zero1:Zero1"])
def test_every_other_law_has_programs_and_ends_where_the_world_has_one_rank(sim: World, name: str) -> None:
    """A law that takes two says so, and does not look for programs in vain."""
    (implementation,) = look_up([name], sim)
    trial = Trial(implementation, OneRank(sim))
    for law in LAWS.values():
        if concerns(law, trial.claims):
            end = filed(law, trial, examples=2)
            assert end["verdict"] in ("holds", "shows nothing")
            assert end["examples"] > 0, law.name


def test_a_law_that_has_no_program_within_the_claims_shows_nothing(sim: World) -> None:
    (implementation,) = look_up(["lockstep.impls.naive:NaiveDataParallel"], sim)
    empty = replace(MEAN, draws=lambda claims: st.integers().filter(lambda _: False))
    with pytest.warns(UserWarning, match=NOTHING_DRAWN):
        end = filed(empty, Trial(implementation, sim), examples=2)
    assert (end["verdict"], end["examples"]) == ("shows nothing", 0)
