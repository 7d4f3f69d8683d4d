"""What is rare but right runs, on both worlds alike; what is wrong is wrong on both; what one example does to its
process is not there for the next.
"""

import copy
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worlds import process
from worlds.contract import Job, Outcome, World
from worlds.gloo import GlooWorld
from worlds.sim.world import SimWorld
from worlds.tests.oddities import LAYOUTS, OPERATIONS, REFUSED
from worlds.tests.outcomes import kinds, messages, plain, results


def run(world: World, name: str, size: int, payload: str = "", **options: Any) -> Outcome:
    """The outcome of a function of `worlds.tests.oddities`."""
    return world.run(Job(f"worlds.tests.oddities:{name}", payload, size, **options))


@pytest.fixture(params=["sim", "gloo"])
def world(request: pytest.FixtureRequest) -> World:
    """Each of the two in turn."""
    found: World = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_tensor_is_sent_as_it_lies_in_memory(sim: World, gloo: World, operation: str, layout: str) -> None:
    """So gaps, and strides that are not the same on all ranks, corrupt silently on sim as they do on gloo."""
    here, there = (results(run(each, "in_a_layout", 3, f"{operation}, {layout}")) for each in (sim, gloo))
    assert plain(here) == plain(there)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_recorded_is_what_lies_in_memory(sim: World, gloo: World, operation: str) -> None:
    payload = f"{operation}, transposed on one rank"
    outcomes = [run(each, "in_a_layout", 3, payload, contents=True) for each in (sim, gloo)]
    here, there = ([plain([call.sent for call in report.collectives]) for report in each] for each in outcomes)
    assert here == there


def test_an_expanded_tensor_is_read(sim: World, gloo: World) -> None:
    """By what minds strides; "an expanded tensor" below is read by what does not."""
    here, there = (results(run(each, "reading_the_expanded", 2)) for each in (sim, gloo))
    assert plain(here) == plain(there)
    assert here[0]["read"].tolist() == [1, 1, 1, 1, 2, 2, 2, 2] * 2 + [3, 3]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_group_is_called_in_every_form_that_torch_has(sim: World, gloo: World, size: int) -> None:
    meant = plain(results(run(gloo, "calling_in_every_form", size, "plain")))
    for world in (sim, gloo):
        assert plain(results(run(world, "calling_in_every_form", size, "world"))) == meant
    assert all(each["counted"] and each["refused"] == [True] * 3 for each in meant)


def test_a_tensor_without_memory_of_its_own_is_reduced(world: World) -> None:
    for each in results(run(world, "reducing_wrapped", 2)):
        assert dict(each) == {"flying": [6, 6], "wrapped": [3, 3]}


def test_gloos_calls_go_through_torchs_dispatcher(gloo: World) -> None:
    assert [each["count"] for each in results(run(gloo, "counting_calls", 2))] == [1, 1]


@pytest.mark.parametrize("reduction", ["SUM", "MAX", "PRODUCT"])
def test_a_reduction_to_one_rank_leaves_on_the_others_what_gloo_leaves(sim: World, gloo: World, reduction: str) -> None:
    """Nobody may use it, and code that does is to be wrong on sim too."""
    changed = 0
    for size, count, root in ((2, 1, 0), (2, 1, 1), (2, 5, 0), (3, 1, 0), (3, 8, 2), (4, 5, 1), (5, 33, 3), (4, 0, 0)):
        payload = f"{count}, {root}, {reduction}"
        here, there = (results(run(each, "reducing_to_one", size, payload)) for each in (sim, gloo))
        assert plain(here) == plain(there)
        own = ([element % 5 + 2.0 * rank + 1 for element in range(count)] for rank in range(size))
        changed += any(
            rank != root and each["values"].tolist() != mine
            for rank, (each, mine) in enumerate(zip(here, own, strict=True))
        )
    assert changed >= 5


@pytest.mark.parametrize("name", ["destroying_a_group", "beginning_again", "calling_the_group"])
def test_groups_end_and_begin_and_are_called_without_options(sim: World, gloo: World, name: str) -> None:
    for size in (2, 3):
        here, there = (results(run(each, name, size)) for each in (sim, gloo))
        assert plain(here) == plain(there)
        for rank, each in enumerate(here):
            ones = [value for other in range(size) for value in (other, other)]
            of_each: dict[str, dict[str, list[Any]]] = {
                "destroying_a_group": {"values": [[size * (size + 1) / 2] * 2] * 3},
                "beginning_again": {"values": [size * (size + 1) / 2] * 2, "some": [2.0 if rank < 2 else 1.0]},
                "calling_the_group": {"gathered": [*ones, *ones, *(rank + 10 * other for other in range(size))]},
            }
            assert {key: each[key].tolist() for key in of_each[name]} == of_each[name]


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_backend_does_is_an_error_of_one_type_on_both(sim: World, gloo: World, what: str) -> None:
    """Of a type, where it is the backend's, that no law takes for a deliberate refusal by the implementation."""
    here = run(sim, "being_refused", 2, what)
    kind = "IndexError" if what == "a root that is not there" else "RuntimeError"  # torch.distributed's own check
    assert {message.partition(":")[0] for message in messages(here)} == {kind}
    if what not in ("an expanded tensor", "no memory"):  # beyond the one gloo writes, and lets the other pass
        there = run(gloo, "being_refused", 2, what)
        kind = "NotImplementedError" if what == "no tensor" else kind  # torch's dispatcher, not Python code
        assert {message.partition(":")[0] for message in messages(there)} == {kind}


def test_a_handle_tells_the_same_on_both(sim: World, gloo: World) -> None:
    here, there = (results(run(each, "looking_at_work", 2)) for each in (sim, gloo))
    assert plain(here) == plain(there)


def test_ranks_wait_for_each_other_by_the_store(sim: World, gloo: World) -> None:
    for size in (1, 2, 3):
        here, there = (results(run(each, "keeping_in_the_store", size)) for each in (sim, gloo))
        assert plain(here) == plain(there)
        assert [each["appended"] for each in here] == [b"c!"] * size


def test_a_store_that_another_thread_uses_is_gloos_alone(gloo: World) -> None:
    assert [each["kept"] for each in results(run(gloo, "keeping_from_a_thread", 2))] == [b"beats"] * 2
    sim = SimWorld()
    try:
        outcome = run(sim, "keeping_from_a_thread", 2)
        assert kinds(outcome) == ["not runnable"] * 2
        assert "sets key" in messages(outcome)[0]
        assert "of the store from a thread of the implementation's own (heart)" in messages(outcome)[0]
    finally:
        sim.close()


def test_a_key_that_nobody_sets_is_a_deadlock_that_is_named(sim: World) -> None:
    outcome = run(sim, "waiting_in_vain", 2)
    assert kinds(outcome) == ["deadlock"] * 2
    assert "rank 1 waits for key '0//never' of the store" in messages(outcome)[1]


def test_ranks_may_wait_in_a_store_of_their_own(sim: World, gloo: World, tmp_path: Path) -> None:
    for size in (1, 2, 3):
        for world in (sim, gloo):
            seen = results(run(world, "keeping_in_a_file", size, str(tmp_path / f"{world.name} {size}")))
            assert [each["after"] for each in seen] == [b"of %d" % ((rank + 1) % size) for rank in range(size)]
    outcome = run(sim, "waiting_in_vain_in_a_file", 2, str(tmp_path / "never"))
    assert kinds(outcome) == ["deadlock"] * 2
    assert "rank 1 polls key 'never' of a FileStore" in messages(outcome)[1]


def test_ranks_may_keep_a_store_at_a_port(world: World) -> None:
    for size in (1, 2, 3):
        for keeper in range(size):
            seen = results(run(world, "keeping_at_a_port", size, f"{keeper} {free_port()}"))
            assert [each["found"] for each in seen] == [[b"of %d" % rank for rank in range(size)]] * size


def test_a_store_at_a_port_that_lacks_somebody_is_a_deadlock_that_is_named(sim: World) -> None:
    port = free_port()
    outcome = run(sim, "waiting_for_a_keeper", 2, str(port))
    assert kinds(outcome) == ["deadlock"] * 2
    assert f"rank 1 polls a TCPStore at localhost:{port}" in messages(outcome)[0]
    outcome = run(sim, "waiting_for_others_at_a_port", 3, str(port))
    assert kinds(outcome) == ["deadlock"] * 3
    assert f"rank 0 polls the 2 that a TCPStore at localhost:{port} waits for" in messages(outcome)[1]


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def test_ranks_may_end_as_soon_as_they_have_made_a_group(gloo: World) -> None:
    """Before there was a meeting at the end, some 7 of 60 failed to connect."""
    for _ in range(60):
        results(run(gloo, "making_a_group_last", 4))


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


@pytest.mark.parametrize("another", ["KeyError", "SystemExit"])
def test_an_exception_that_cannot_be_told_is_told_all_the_same(world: World, another: str) -> None:
    outcome = run(world, "raising_the_unspeakable", 2, another)
    assert kinds(outcome) == ["raised"] * 2
    assert set(messages(outcome)) == {f"_CannotBeTold, whose message cannot be had: {another}"}


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


def test_sparse_tensors_are_gloos_alone() -> None:
    """The simulated world says so, where it once reduced nothing."""
    sim, gloo = SimWorld(), GlooWorld()
    try:
        assert [each["sum"].tolist() for each in results(run(gloo, "summing_sparse", 2))] == [[1.0, 1.0]] * 2
        outcome = run(sim, "summing_sparse", 2)
        assert kinds(outcome) == ["not runnable"] * 2
        assert "torch.sparse_coo tensors" in messages(outcome)[0]
    finally:
        sim.close()
        gloo.close()


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
