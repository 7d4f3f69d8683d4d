"""Scenarios run otherwise: ranks in the parts of others, or alone, seeded, parameters registered in another order."""

import random
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import ActAlone, Backward, Duplicate, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.conditions import Conditions
from lockstep.properties.judging import judge
from lockstep.properties.naming import GENERATORS
from lockstep.properties.ranks import randomness
from lockstep.properties.reports.otherwise import RUN_OTHERWISE
from lockstep.properties.test_accumulation import same_samples, split_and_whole
from lockstep.properties.test_scale import shared
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World

SCENARIO = Scenario(2, (Parameter((1,)), Parameter((2,))), (Backward(((0, 1), (1, 0))), Finish()))
ALONE, COPIED_TWICE = (
    replace(SCENARIO, program=(*first, *SCENARIO.program)) for first in ((ActAlone(1),), (Duplicate(), Duplicate()))
)


def test_a_rank_in_the_part_of_another_has_its_gradients_and_hooks(sim: World) -> None:
    alone = trial_of("lockstep.properties.tests.user_code:NeverSynchronizes", sim)
    own, swapped = (alone.run(replace(SCENARIO, roles=roles)).observations for roles in ((0, 1), (1, 0)))
    assert [seen["hooks"] for seen in swapped] == [seen["hooks"] for seen in own[::-1]]
    for rank in range(2):
        pairs = zip(swapped[rank]["gradients"][1], own[1 - rank]["gradients"][1], strict=True)
        assert all(judge.same_bits(*pair) for pair in pairs)


def test_every_rank_keeps_its_own_start_whatever_its_part(sim: World) -> None:
    bare = trial_of("lockstep.properties.tests.user_code:bare", sim)
    own, swapped = (bare.run(replace(SCENARIO, roles=roles)).observations for roles in ((0, 1), (1, 0)))
    assert [seen["initial"][0].tolist() for seen in own] == [seen["initial"][0].tolist() for seen in swapped]


@pytest.mark.parametrize(("order", "counts"), [((0, 1), [1, 2]), ((1, 0), [2, 1])])
def test_parameters_are_sent_in_the_order_of_their_registration(
    sim: World, order: tuple[int, ...], counts: list[int]
) -> None:
    run = trial_of("lockstep.impls.naive:NaiveAccumulation", sim).run(replace(SCENARIO, registered=order))
    sent = [[call.count for call in calls if call.operation == "all_reduce"] for calls in run.collectives]
    assert sent == [counts, counts]


def test_two_micro_batches_and_one_big_batch_hold_the_same_samples() -> None:
    split, whole = split_and_whole(SCENARIO)
    assert [batch.synchronize for batch in split.microbatches] == [False, True]
    assert (split.samples, whole.samples) == (2, 4)
    assert same_samples((split, whole))


@pytest.mark.parametrize(("twice", "ranks"), [(False, {1}), (True, {1, 4})])
def test_samples_are_shared_by_another_number_of_ranks(twice: bool, ranks: set[int]) -> None:
    pairs = [shared(SCENARIO, twice, which, 8) for which in range(4)]
    assert {other.world_size for _, other in pairs} == ranks
    assert all(one.samples == other.samples == 2 * (1 + twice) for one, other in pairs)


def test_one_rank_acts_alone(sim: World) -> None:
    seen = trial_of("lockstep.impls.naive:NaiveAccumulation", sim).run(ALONE).observations
    assert [list(each["evaluated"]) for each in seen] == [[], [0]]
    assert [read.tolist() for read in seen[1]["evaluated"][0]] == [values.tolist() for values in seen[1]["initial"]]


def test_each_copy_of_the_model_is_evaluated_from_then_on(sim: World) -> None:
    for seen in trial_of("lockstep.impls.naive:NaiveAccumulation", sim).run(COPIED_TWICE).observations:
        copies, wanted = seen["duplicates"], [values.tolist() for values in seen["initial"]]
        assert {place: len(each) for place, each in copies.items()} == {0: 1, 1: 2}
        assert [[read.tolist() for read in each] for each in (*copies[0], *copies[1])] == [wanted] * 3


def test_the_next_random_numbers_are_each_ranks_own_and_looking_at_them_draws_none(sim: World) -> None:
    seen = (
        trial_of("lockstep.impls.naive:NaiveAccumulation", sim)
        .run(replace(SCENARIO, caller=Caller(seeded=True)))
        .observations
    )
    assert [list(each["upcoming"]) for each in seen] == [[-2, -1, 0, 1]] * 2
    told = [{tuple(map(float, numbers)) for numbers in each["upcoming"].values()} for each in seen]
    assert [len(each) for each in told] == [1, 1]
    assert told[0].isdisjoint(told[1])


@pytest.mark.parametrize("which", range(len(GENERATORS)))
def test_a_number_that_is_drawn_from_one_generator_shows_there_alone(which: int) -> None:
    draw = (lambda: torch.rand(()), np.random.rand, random.random)[which]
    here = torch.device("cpu")
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    randomness.begin(0)
    before = randomness.upcoming(here)
    draw()
    after = randomness.upcoming(here)
    torch.set_rng_state(kept[0]), np.random.set_state(kept[1]), random.setstate(kept[2])
    assert [one == other for one, other in zip(before, after, strict=True)] == [place != which for place in range(3)]


def test_a_report_names_every_way_in_which_a_law_may_run_a_program() -> None:
    """What says more of an implementation's claims, or of another way, or counts bytes, is none."""
    more = {
        "equal_from",
        "asks_for_masters",
        "averages_in_step",
        "zeros",
        "saved_by",
        "loner",
        "collects",
        "in_layers",
        "pieces",
    }
    ways = {field.name for field in fields(Conditions)} - more
    assert RUN_OTHERWISE.keys() == ways | {"asynchrony", "order"}
