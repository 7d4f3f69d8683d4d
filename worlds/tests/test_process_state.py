"""What one example does to its process is not there for the next, and is its own: clocks, forks, threads, alarms."""

import copy
import functools
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from lockstep.worlds import process
from lockstep.worlds.contract import World
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.outcomes import kinds, messages, plain, results, run_of

run = functools.partial(run_of, "process_state")


def test_a_dump_of_stacks_ends_with_its_example(world: World) -> None:
    results(run(world, "leaving_a_dump", 2))
    results(run(world, "sleeping", 2, "0.5"))


def test_another_generator_of_numpys_is_its_ranks_alone(sim: World) -> None:
    """Whatever the others draw in between."""
    other, usual = np.random.RandomState(np.random.PCG64(1)), np.random.RandomState(0)
    for _ in range(2):
        found = results(run(sim, "drawing_from_another_generator", 2))
        assert [each["generator"] for each in found] == ["PCG64", "MT19937"]
        expected = [[float(each.randn()) for _ in range(3)] for each in (copy.deepcopy(other), copy.deepcopy(usual))]
        assert [each["drawn"] for each in found] == expected


def test_garbage_is_collected_on_ranks_but_not_what_torchs_import_has_made(world: World) -> None:
    assert [dict(each) for each in results(run(world, "collecting", 2))] == [{"enabled": True, "frozen": True}] * 2


def test_an_alarm_and_a_variable_end_with_their_example(world: World) -> None:
    results(run(world, "leaving_an_alarm", 2))
    results(run(world, "sleeping", 2, "0.4"))
    for _ in range(2):
        seen = results(run(world, "setting_a_variable", 2))
        assert [dict(each) for each in seen] == [{"before": None, "local": "2"}] * 2
    assert "LOCKSTEP_ODDITY" not in os.environ


def test_random_numbers_begin_anew_on_gloo_too_and_only_torchs_are_those_of_every_rank(gloo: World) -> None:
    first, second = ([each["drawn"] for each in results(run(gloo, "drawing_numbers", 2))] for _ in range(2))
    assert first == second
    assert [one == other for one, other in zip(*first, strict=True)] == [False, False, True]


@pytest.mark.parametrize(("how", "status"), [("exits", 1), ("returns", 0)])
def test_a_forked_copy_of_a_rank_ends_where_its_function_ends(world: World, how: str, status: int) -> None:
    assert [each["status"] for each in results(run(world, "forking", 2, how))] == [status] * 2


def test_ranks_may_have_children(world: World) -> None:
    assert [each["status"] for each in results(run(world, "having_children", 2))] == [0, 0]


def test_a_thread_that_threading_does_not_know_is_told_and_does_not_meet_the_next_example(world: World) -> None:
    outcome = run(world, "leaving_a_nameless_thread", 2)
    assert outcome[0].left == ("a thread (of _thread)",)
    assert run(world, "sleeping", 2, "0")[0].left == ()


@pytest.mark.parametrize("kind", [SimWorld, GlooWorld])
def test_an_import_takes_none_of_an_examples_time(kind: type[SimWorld] | type[GlooWorld]) -> None:
    world = kind()
    try:
        results(run(world, "sleeping", 1, "0"))  # the fork server is up
        results(run(world, "importing", 1, "0", limit=0.7))
        assert kinds(run(world, "importing", 1, "60", limit=0.7)) == ["timeout"]
    finally:
        world.close()


def test_what_a_rank_has_forked_leaves_its_clock_alone(world: World) -> None:
    """Else an example whose fork died while it was importing would never come to its limit."""
    assert [each["since"] for each in results(run(world, "forking_while_importing", 2))] == [0.0] * 2


@pytest.fixture
def busy_core() -> Iterator[int]:
    """A core on which three processes compute besides, each of a session of its own, as another user's are."""
    core = min(os.sched_getaffinity(0))
    loop = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    others = [subprocess.Popen(loop, start_new_session=True) for _ in range(3)]
    yield core
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.parametrize("kind", [SimWorld, GlooWorld])
def test_what_others_compute_takes_none_of_an_examples_time(
    kind: type[SimWorld] | type[GlooWorld], busy_core: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what a child's start may take: an example that computes for ever ends on a busy machine too."""
    world = kind()
    try:
        results(run(world, "sleeping", 1, "0"))  # the fork server is up
        results(run(world, "computing", 1, f"1.2 on {busy_core}", limit=1.5))
        monkeypatch.setattr(process, "START_LIMIT", 2.0)
        assert kinds(run(world, "computing", 1, f"60 on {busy_core}", limit=1.5)) == ["timeout"]
    finally:
        world.close()


def test_ranks_may_be_profiled_but_on_sim_one_at_a_time(gloo: World) -> None:
    """There it was killed by SIGSEGV: there is one profiler for each process."""
    sim = SimWorld()
    try:
        for how in ("in turn", "alone"):
            here, there = (results(run(each, "profiling", 2, how)) for each in (sim, gloo))
            assert here[0]["added"]
            assert plain(here) == plain(there)
        outcome = run(sim, "profiling", 2, "at a time")
        assert kinds(outcome) == ["not runnable"] * 2
        assert "rank 1 starts torch's profiler while another rank profiles: " in messages(outcome)[0]
        assert [each["added"] for each in results(run(gloo, "profiling", 2, "at a time"))] == [True, True]
    finally:
        sim.close()
