"""What fails on real processes is shrunk where that is cheap, and what fails at times is reported as that."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import test_asynchrony, test_mean, test_models
from lockstep.properties.diagnosing.confirming import CARRIED_OUT, confirm
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.diagnosing.rerunning import REPEATS, TIMES, owes_to_the_past, paused, repeat
from lockstep.properties.implementations import look_up
from lockstep.properties.law import Law, law_of
from lockstep.properties.reports.failure import report
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.hold import hold
from lockstep.properties.searching.search import COSTLY_RUNS, Failure, search
from lockstep.properties.tests.unsteady import LATE, SLOW
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import Crashes, SilentlyWrong
from lockstep.worlds.contract import Job, Outcome, World

MEAN = law_of(test_mean.test_gradients_equal_the_mean_over_ranks)
ANY_ORDER = law_of(test_asynchrony.test_exact_sums_do_not_depend_on_the_order_of_reduction)
REAL_MODEL = law_of(test_models.test_a_real_model_gets_the_mean_gradient_of_the_whole_batch)
ONE = Parameter((1,))
SMALLEST = Scenario(2, (ONE, ONE), (Backward(((0, 1), (1, 0))), Finish()))
CACHED = "lockstep.properties.tests.unsteady:WithACachedGroup"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often a failure is seen again is not to depend on how fast the machine is."""
    for module, seconds in (
        ("diagnosing.rerunning", "REPEAT"),
        ("diagnosing.rerunning", "SIMULATED"),
        ("diagnosing.confirming", "REPEAT"),
    ):
        monkeypatch.setattr(f"lockstep.properties.{module}.{seconds}_SECONDS", float("inf"))


def trial(name: str, where: World, world: World, **options: Any) -> Trial:
    (implementation,) = look_up([name], where)
    return Trial(implementation, world, **options)


class Counted:
    """A world, and how many examples it has run."""

    def __init__(self, world: World) -> None:
        self._world, self.name, self.device, self.limit = world, world.name, world.device, world.limit
        self.ranks = world.ranks
        self.runs = 0

    def run(self, job: Job) -> Outcome:
        self.runs += 1
        return self._world.run(job)

    def close(self) -> None:
        """It belongs to others."""


def test_what_the_simulated_world_shows_too_is_shrunk_there(sim: World, gloo: World) -> None:
    real = Counted(gloo)
    under_test = trial("lockstep.impls.async_hook:AsyncHookDataParallel", sim, real, sim=lambda: sim)
    for seed in range(2):
        (failure,) = search(MEAN, under_test, 100, seed_value=seed, only=SilentlyWrong).failures
        ran = real.runs
        assert failure.drawn == SMALLEST
        assert failure.simulated
        confirmed = confirm(MEAN, under_test, failure)
        assert confirmed is not None
        assert confirmed.seen == (REPEATS, REPEATS)
        assert real.runs == ran + REPEATS
        assert "shrunk on the simulated world" in confirmed.elsewhere


def test_what_only_real_processes_show_is_shrunk_there_in_at_most_20_runs(sim: World, gloo: World) -> None:
    real = Counted(gloo)
    under_test = trial("lockstep.properties.tests.unsteady:WrongInProcessesOfTheirOwn", sim, real, sim=lambda: sim)
    (failure,) = search(MEAN, under_test, 100, seed_value=0, only=SilentlyWrong).failures
    confirmed = confirm(MEAN, under_test, failure)
    assert confirmed is not None
    assert confirmed.seen == (REPEATS + 1, REPEATS + 1)
    assert confirmed.elsewhere == ""
    # Up to the first failure every example is sound: one rank, or a program without a gradient.
    assert real.runs <= 20 + sum(1 for _ in range(20))
    assert COSTLY_RUNS + REPEATS + 2 * TIMES == 20  # these where one asks what earlier examples have left


def test_an_order_that_hangs_on_hashes_differs_between_real_ranks(sim: World, gloo: World) -> None:
    """As it does in any job, whose ranks are interpreters of their own. The simulated world has one for all."""
    name = "lockstep.properties.tests.unsteady:InTheOrderOfASetOfNames"
    assert search(MEAN, trial(name, sim, sim), 30, seed_value=0).failures == []
    (failure,) = search(MEAN, trial(name, sim, gloo, sim=lambda: sim), 100, seed_value=0, only=SilentlyWrong).failures
    confirmed = confirm(MEAN, trial(name, sim, gloo, sim=lambda: sim), failure)
    assert confirmed is not None
    assert confirmed.seen == (REPEATS + 1, REPEATS + 1)


def filed(law: Any, under_test: Trial) -> tuple[str, str]:
    """The verdict that is filed, and the message of the failure."""
    records: dict[str, Any] = {}
    with pytest.raises(pytest.fail.Exception) as failed:
        hold(law, under_test, records.__setitem__)
    return records["lockstep"]["verdict"], str(failed.value)


@pytest.mark.parametrize("where", ["gloo", "sim"])
def test_a_failure_by_chance_is_reported_as_seen_in_some_of_the_runs(
    sim: World, gloo: World, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Never as a test that is itself flaky. Several times, since chance has many ways to go."""
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    sometimes = 0
    for number in range(6):
        if number >= 2 and sometimes:
            break
        world = gloo if where == "gloo" else sim
        under_test = trial(
            "lockstep.properties.tests.unsteady:WrongByChance", sim, world, sim=lambda: sim, confirm_on=lambda: gloo
        )
        verdict, message = filed(MEAN, under_test)
        assert "Flaky" not in message
        assert verdict.startswith("silently wrong")
        counted = re.findall(r"in (\d+) of (\d+) runs", verdict)  # of each failure: the law may be broken in two ways
        sometimes += bool(counted)
        for failed, runs in counted:
            assert 1 <= int(failed) < int(runs) <= REPEATS + 1
            assert f"in {failed} of {runs} runs" in message
            assert "does not fail every time" in message
    assert sometimes >= 1  # failing always in 9 runs, six times, is not what a third of the time looks like


def test_what_fails_on_the_simulated_world_only_after_shrinking_stands_as_it_was_found(sim: World, gloo: World) -> None:
    under_test = trial("lockstep.impls.naive:NaiveDataParallel", sim, gloo)
    wrong = trial("lockstep.impls.async_hook:AsyncHookDataParallel", sim, sim)
    (failure,) = search(MEAN, wrong, 100, seed_value=0, only=SilentlyWrong).failures
    found = Failure("what was found", failure.broken)
    again = repeat(MEAN, wrong, Failure(failure.drawn, failure.broken, simulated=True, found=found))
    assert again is not None
    assert again.drawn == failure.drawn
    sound = Scenario(1, (ONE,), (Backward(((0,),)), Finish()))
    stands = repeat(
        MEAN, under_test, Failure(sound, failure.broken, simulated=True, found=Failure(sound, failure.broken))
    )
    assert stands is not None
    assert not stands.simulated
    assert stands.seen == (1, REPEATS + 1)


def test_what_hung_only_where_patience_was_short_is_not_told(sim: World) -> None:
    """A failure that shrinking has reached with a shorter limit than the world's: seen again with all of it, or not."""
    wrong = trial("lockstep.impls.async_hook:AsyncHookDataParallel", sim, sim)
    (failure,) = search(MEAN, wrong, 100, seed_value=0, only=SilentlyWrong).failures
    sound = Scenario(1, (ONE,), (Backward(((0,),)), Finish()))
    assert repeat(MEAN, wrong, Failure(sound, failure.broken, found=failure)) == replace(
        failure, seen=(REPEATS + 1, REPEATS + 1)
    )
    again = repeat(MEAN, wrong, replace(failure, found=Failure(sound, failure.broken)))
    assert again is not None
    assert again.drawn == failure.drawn


def test_what_the_clock_has_ended_once_was_a_pause_and_what_it_ends_always_was_not(sim: World) -> None:
    sound = Scenario(1, (ONE,), (Backward(((0,),)), Finish()))
    hangs = replace(trial("lockstep.properties.tests.unsteady:NeverEnds", sim, sim), limit=0.5)
    (failure, *_) = search(MEAN, hangs, 2, seed_value=0, shrink=False).failures
    assert not paused(MEAN, hangs, [failure])
    assert paused(MEAN, trial("lockstep.impls.naive:NaiveDataParallel", sim, sim), [replace(failure, drawn=sound)])
    assert not paused(MEAN, hangs, [])


def test_repeating_takes_no_longer_than_it_may(sim: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.properties.diagnosing.rerunning.REPEAT_SECONDS", 0.0)
    wrong = trial("lockstep.impls.async_hook:AsyncHookDataParallel", sim, sim)
    begun = time.monotonic()
    (failure,) = search(MEAN, wrong, 100, seed_value=0, only=SilentlyWrong).failures
    repeated = repeat(MEAN, wrong, failure)
    assert repeated is not None
    assert repeated.seen == (1, 1)
    assert time.monotonic() - begun < 30


def test_the_report_of_a_failure_that_always_shows_says_nothing_of_runs(
    sim: World, gloo: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    under_test = trial("lockstep.impls.async_hook:AsyncHookDataParallel", sim, gloo, sim=lambda: sim)
    (failure,) = search(MEAN, under_test, 100, seed_value=0, only=SilentlyWrong).failures
    confirmed = confirm(MEAN, under_test, failure)
    assert confirmed is not None
    text = report(MEAN, under_test, diagnose(under_test, confirmed, to_the_core=False))
    assert "runs" not in text.splitlines()[0]
    assert "Seen:" not in text
    assert "Came from" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WrongOrCrashing", "on gloo: crashes. Every rank: raised KeyError: 'lost' in event 1, Finish()."),
        ("WrongOrRefusing", "on gloo: refuses. ValueError: not in processes of their own"),
    ],
)
def test_what_fails_in_another_way_on_real_processes_is_told_with_its_verdict(
    sim: World, gloo: World, name: str, words: str
) -> None:
    under_test = trial(f"lockstep.properties.tests.unsteady:{name}", sim, sim, confirm_on=lambda: gloo)
    (failure,) = search(MEAN, under_test, 30, seed_value=0, only=SilentlyWrong).failures
    confirmed = confirm(MEAN, under_test, failure)
    assert confirmed is not None
    assert confirmed.elsewhere == words


@pytest.mark.parametrize("law", [MEAN, ANY_ORDER])
def test_collectives_that_gloo_carries_out_although_they_do_not_match_are_a_failure(
    sim: World, gloo: World, law: Law
) -> None:
    under_test = trial(
        "lockstep.properties.tests.unsteady:DisagreesOnWhatNobodyReads", sim, sim, confirm_on=lambda: gloo
    )
    (failure,) = search(law, under_test, 30, seed_value=0).failures
    assert isinstance(failure.broken, Crashes)
    confirmed = confirm(law, under_test, failure)
    assert confirmed is not None
    assert confirmed.elsewhere == (CARRIED_OUT if law is MEAN else law.only_on["sim"])


@pytest.mark.parametrize(
    ("name", "law"),
    [("WithStateOfTheClass", MEAN), ("WithStateOfTheClassAndSlow", MEAN), ("WithStateOfTheClass", ANY_ORDER)],
)
def test_state_that_only_simulated_ranks_share_is_a_warning_and_no_failure(
    sim: World, gloo: World, name: str, law: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each simulated rank then has its own, also where gloo takes long, or the law is about what only sim can do."""
    monkeypatch.setattr("lockstep.properties.diagnosing.confirming.CONFIRM_LIMIT", LATE - 0.5)
    under_test = trial(f"lockstep.properties.tests.unsteady:{name}", sim, sim, confirm_on=lambda: gloo)
    records: dict[str, Any] = {}
    with pytest.warns(UserWarning, match="they were kept apart by rank"):
        hold(law, under_test, records.__setitem__, Budget(examples=30))
    assert records["lockstep"]["verdict"] == "holds"


@pytest.mark.parametrize(("where", "law"), [("sim", MEAN), ("gloo", MEAN), ("gloo", REAL_MODEL)])
def test_what_earlier_examples_have_left_in_a_process_is_a_warning_and_no_failure(
    sim: World, gloo: World, where: str, law: Law
) -> None:
    """Each example then has processes of its own; the simulated ranks still share one."""
    world, match = (
        (gloo, "fails only after other examples have run in the same process")
        if where == "gloo"
        else (sim, "fails on the simulated world only")
    )
    under_test = trial(
        "lockstep.properties.tests.unsteady:RightSixTimesInAProcess", sim, world, confirm_on=lambda: gloo
    )
    records: dict[str, Any] = {}
    with pytest.warns(UserWarning, match=match):
        # On sim some program has to wrap more than six by itself, which one in four does.
        hold(law, under_test, records.__setitem__, Budget(examples=10 if where == "gloo" else 40))
    assert records["lockstep"]["verdict"] == ("holds" if where == "gloo" else "sim only, no failure")
    if where == "gloo":
        assert records["lockstep"]["examples"] > 1


@pytest.mark.parametrize("law", [MEAN, REAL_MODEL])
def test_what_is_refused_for_what_earlier_examples_have_left_runs_in_fresh_processes(
    sim: World, gloo: World, law: Law
) -> None:
    """Else nearly all would be refused, and the law would hold, or be refused, for no reason of its own."""
    records: dict[str, Any] = {}
    with pytest.warns(UserWarning, match="fails only after other examples have run in the same process"):
        hold(law, trial(CACHED, sim, gloo, sim=lambda: sim), records.__setitem__, Budget(examples=6))
    assert records["lockstep"]["verdict"] == "holds"
    assert records["lockstep"]["examples"] > 1
    assert "refused" not in records["lockstep"]
    under_test = trial(CACHED, sim, sim, confirm_on=lambda: gloo)
    with pytest.warns(UserWarning, match="fails on the simulated world only, with any timing of the collectives"):
        hold(law, under_test, records.__setitem__, Budget(examples=6))
    assert records["lockstep"]["verdict"] == "sim only, no failure"


def test_what_fails_in_fresh_processes_alone_is_no_chance(sim: World) -> None:
    """After other examples it is refused, which is no failure; chance fails or passes in either."""
    failure = Failure(SMALLEST, Crashes("", SMALLEST, ()))
    assert owes_to_the_past(MEAN, trial(CACHED, sim, sim), [failure])
    by_chance = trial("lockstep.properties.tests.unsteady:WrongByChance", sim, sim)
    assert not all(owes_to_the_past(MEAN, by_chance, [failure]) for _ in range(5))


def test_slow_code_that_crashes_does_not_hang(sim: World, gloo: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is seen again with all of its world's patience, as nothing has hung."""
    for module in ("searching.search", "diagnosing.rerunning"):
        monkeypatch.setattr(f"lockstep.properties.{module}.SHRINK_LIMIT", SLOW / 2)
    under_test = trial("lockstep.properties.tests.unsteady:CrashesAndSlow", sim, gloo, sim=lambda: sim)
    (failure,) = search(MEAN, under_test, 5, seed_value=0).failures
    again = repeat(MEAN, under_test, failure)
    assert again is not None
    assert again.simulated
    assert again.broken.verdict == "crashes"
    assert "KeyError: 'lost'" in again.broken.headline
