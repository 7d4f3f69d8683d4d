"""A run that was made for one law is judged by all that it says something about."""

import math
import time
from dataclasses import replace

import pytest

from lockstep.oracle.events import Backward, Finish, Step
from lockstep.oracle.events.backward import OVERFLOWS
from lockstep.oracle.model import LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.implementations import Unusable
from lockstep.properties.law import Law, sentence
from lockstep.properties.reports.matrix import PROPERTY, SHOWN, matrix, verdicts
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.hold import hold
from lockstep.properties.running.pace import Pace, Wanted, level, seconds_of
from lockstep.properties.searching.least import neighbours
from lockstep.properties.searching.others import Others
from lockstep.properties.searching.search import search
from lockstep.properties.searching.seldom import Seldom
from lockstep.properties.strategies.features import FEATURES, is_usual
from lockstep.properties.strategies.independent import sample
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World

LAWS = every_law()
START = LAWS["test_every_rank_starts_with_the_parameters_of_rank_0"]
MEAN = LAWS["test_gradients_equal_the_mean_over_ranks"]
WIRE = LAWS["test_gradients_travel_in_their_own_dtype_or_a_wider_one"]
ORDER = LAWS["test_the_result_does_not_depend_on_the_order_of_registration"]
ALONE = LAWS["test_gradients_scale_with_the_loss"]  # of which others show nothing
UNSHARDED = LAWS["test_every_stage_gives_the_bits_of_no_sharding_at_all"]  # which runs another class to compare
IN_DOUBLE = LAWS["test_gradients_are_reduced_in_the_dtype_that_is_claimed"]
FSDP2 = "lockstep.impls.frameworks.fsdp2"
NAIVE = "lockstep.impls.naive:NaiveDataParallel"
NARROW = "lockstep.impls.faults.precision:ReducesInFloat32"  # starts rightly, and reduces in too narrow a dtype


def told(*filed: tuple[str, object]) -> object:
    """A report of pytest's with these properties."""
    return type("Report", (), {"when": "call", "user_properties": list(filed)})


def test_what_runs_for_one_law_is_judged_by_the_others(sim: World) -> None:
    trial, others = trial_of(NAIVE, sim), Others([MEAN, WIRE, ORDER], whole=True)
    found = search(others.join(MEAN), trial, 10, seed_value=1)
    assert (found.failures, found.examples) == ([], 10)
    assert others.shown["gradients travel in their own dtype or a wider one"] >= 10  # and what another law has made
    assert others.shown["the result does not depend on the order of registration"] > 0
    assert "gradients equal the mean over ranks" not in others.shown  # those are its own


def test_what_a_law_runs_of_another_class_to_compare_is_no_run_of_this_one(sim: World) -> None:
    program = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish(), Step()))
    trial = replace(trial_of(f"{FSDP2}:FSDP2ReducesInDouble", sim), runs={})
    Others([IN_DOUBLE], whole=True).join(UNSHARDED).check(trial, program)  # the other one reduces in float32
    assert trial.runs is not None
    UNSHARDED.check(trial, program)
    first, second = (run for run, _ in trial.runs.values())
    wires = {"float64", "float32"}
    assert {call.dtype for run in (first, second) for call in run.collectives[0] if "reduce" in call.operation} == wires


def test_a_failure_of_another_law_is_told_as_that_laws(sim: World) -> None:
    trial, filed = trial_of(NARROW, sim), list[tuple[str, object]]()
    budget = Budget("1", examples=20, others=Others([START, MEAN, WIRE]))
    with pytest.raises(pytest.fail.Exception, match="breaks P1 on the sim world") as failed:
        hold(START, trial, lambda name, value: filed.append((name, value)), budget)
    assert 'the same program breaks "P13 gradients travel in their own dtype' in " ".join(str(failed.value).split())
    (verdict,) = (value for name, value in filed if name == PROPERTY)
    assert isinstance(verdict, dict)
    assert verdict["law"] == "gradients equal the mean over ranks"


def test_a_law_says_on_how_many_runs_it_was_judged() -> None:
    common = {"number": "P4", "law": "replicas", "implementation": "x:X", "world": "sim"}
    own = told((PROPERTY, {**common, "verdict": "holds", "examples": 12}))
    more = [
        told((PROPERTY, {**common, "law": f"{each}", "verdict": "holds", "examples": 9}), (SHOWN, shown))
        for each, shown in enumerate([{"implementation": "x:X", "world": "sim", "runs": {"replicas": 30}}] * 2)
    ]
    assert any("holds on sim (72)" in line for line in matrix(verdicts([own, *more])))


def test_only_where_all_laws_are_held_does_one_count_on_what_is_drawn_for_others() -> None:
    assert Others([START], whole=False).examples(START, 100) == 100
    assert Others([START], whole=True).examples(START, 100) == round(100 * START.share) < 100
    assert Others([START], whole=True).examples(START, 1) == 1


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_a_law_of_which_fewer_programs_are_drawn_is_shown_by_others(law: Law) -> None:
    assert law.share == 1 or law.shown_by is not None or law.made_of is not None
    assert law.shown_by is None or law.made_of is None


@pytest.mark.parametrize(("words", "seconds"), [("60", 60), ("60s", 60), ("1.5m", 90), ("2h", 7200)])
def test_a_time_is_written_as_people_write_it(words: str, seconds: float) -> None:
    assert seconds_of(words) == seconds


@pytest.mark.parametrize("words", ["", "0s", "soon", "-5", "5 parsecs"])
def test_any_other_time_is_refused_in_a_line(words: str) -> None:
    with pytest.raises(Unusable, match="write a time, such as 60s, 5m or 1h"):
        seconds_of(words)


def test_a_law_that_has_seen_least_has_most_of_the_time() -> None:
    wants = [Wanted(1), Wanted(1, seen=80), Wanted(1, seen=500), Wanted(0.1), Wanted(1, real=True)]
    reached = level(wants, 140)
    assert math.isclose(sum(each.time(reached) for each in wants), 140, rel_tol=0.01)
    assert [round(each.time(reached)) for each in wants] == [100, 20, 0, 10, 10]


def test_a_time_is_planned_anew_when_a_law_begins() -> None:
    pace, others = Pace(100), Others()
    pace.expect(("x:X", law, False, others) for law in (MEAN, ORDER, ALONE))

    def given(law: Law) -> float:
        return pace.until("x:X", law, False) - time.monotonic()

    whole = MEAN.share + ORDER.share + ALONE.share
    assert math.isclose(given(MEAN), 100 * MEAN.share / whole, rel_tol=0.01)
    pace.spent(False, 100, 50)  # of half a second each, so that there is time for 200
    others.shown[sentence(ORDER)] = 1000
    assert given(ORDER) < 0.1
    assert given(ALONE) > 95


def test_a_run_in_a_given_time_draws_what_was_drawn_least(sim: World) -> None:
    claims, seldom = trial_of(NAIVE, sim).claims, Seldom()
    names = [name for name, feature in FEATURES.items() if feature.claimed(claims) and not feature.by_chance]
    seldom.features.update(dict.fromkeys(names, 9) | {"tied": 2})
    draws = seldom.draws(MEAN, claims, {})
    assert draws is not None
    assert all(FEATURES["tied"].occurs(scenario) for scenario in sample(draws, 3))
    seldom.ran(sample(draws, 1)[0])
    assert seldom.features["tied"] == 4  # asked for, and run


def test_a_run_in_a_given_time_draws_neighbours_of_what_was_refused_once(sim: World) -> None:
    claims, seldom = trial_of(NAIVE, sim).claims, Seldom()
    refused = Scenario(3, (Parameter((2,)), Parameter((1,))), (Backward(((0, 1),) * 3), Finish(), Step()))
    draws = seldom.draws(MEAN, claims, {"no": refused})
    assert draws is not None
    assert {*sample(draws, 5)} <= {*neighbours(refused)}
    assert "no" in seldom.refused
    assert seldom.draws(ALONE, claims, {"no": refused}) is None  # it draws programs of its own alone


def test_one_infinite_element_depends_on_the_order_of_hooks(sim: World) -> None:
    claims = trial_of(NAIVE, sim).claims
    batch = Backward(((0, 1), (1, 0)), overflow=(1,))
    usual = Scenario(2, (Parameter((1,)), Parameter((1,))), (batch, Finish()), loss_scale=LossScale(2.0))
    assert is_usual(usual, claims)
    for which in OVERFLOWS[1:]:
        assert not is_usual(replace(usual, program=(replace(batch, overflows=which), Finish())), claims)
