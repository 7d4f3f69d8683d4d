"""The gloo world: the answers of the simulated one, from processes that stay warm and are replaced when spoiled."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.worlds import pool, process, progress
from lockstep.worlds.blame import Progress
from lockstep.worlds.contract import World
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.tests.meaning import CASES, NOT_ON_GLOO, expected
from lockstep.worlds.tests.outcomes import call, gone, kinds, messages, plain, program, results, run_calls
from lockstep.worlds.tests.programs import SlowOnRankZero
from lockstep.worlds.tests.versions import TORCH

USUAL = call("all_reduce")


@pytest.fixture(scope="module")
def quick(gloo: World) -> Iterator[GlooWorld]:
    """A gloo world that loses its patience soon, for examples that spoil it."""
    results(run_calls(gloo, [[USUAL]] * 2))  # the fork server is up: what follows need not wait for it
    world = GlooWorld(limit=5.0)
    yield world
    world.close()


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 0.5)


@pytest.mark.parametrize("name", CASES)
def test_every_collective_gives_the_same_as_on_the_simulated_world(sim: World, gloo: World, name: str) -> None:
    for size in (1, 2, 3):
        calls = CASES[name](size)
        here, there = (run_calls(world, [calls] * size) for world in (gloo, sim))
        for rank, (real, simulated) in enumerate(zip(results(here), results(there), strict=True)):
            assert plain(real["results"]) == plain(simulated["results"])
            assert plain(real["results"]) == plain([expected(asked, rank, size) for asked in calls])
        assert [report.collectives for report in here] == [report.collectives for report in there]


MOVES = ("broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all_single", "batched")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32"])
def test_every_dtype_that_gloo_takes_moves_and_adds_up_as_on_the_simulated_world(
    sim: World, gloo: World, dtype: str
) -> None:
    asked = [call(do, dtype=dtype, count=6) for do in MOVES]
    if dtype != "bool":
        asked += [call(do, dtype=dtype, count=6) for do in ("all_reduce", "reduce_scatter_tensor")]
    here, there = (results(run_calls(world, [asked] * 3)) for world in (gloo, sim))
    for rank, (real, simulated) in enumerate(zip(here, there, strict=True)):
        meant = [expected(each, rank, 3) for each in asked]
        if dtype == "bool":
            meant = [[(values % 3 == 0).astype(float) for values in each] for each in meant]
        assert plain(real["results"]) == plain(simulated["results"]) == plain(meant)


@pytest.mark.parametrize("reduction", ["max", "min", "product", "band", "bor", "bxor"])
def test_bool_is_reduced_as_on_the_simulated_world(sim: World, gloo: World, reduction: str) -> None:
    do = "reduce_bits" if reduction.startswith("b") else "all_reduce"
    asked = [call(do, dtype="bool", reduction=reduction, count=6)]
    assert plain(results(run_calls(gloo, [asked] * 3))[0]["results"]) == plain(
        results(run_calls(sim, [asked] * 3))[0]["results"]
    )


REFUSED_BY_GLOO = {
    "premul_sum": "Cannot use ReduceOp.PREMUL_SUM with Gloo",
    "all_to_all": "does not support alltoall",
    "all_to_all_uneven": "invalid tensor size" if TORCH >= (2, 12) else "does not support alltoall",
    "all_gather_uneven": "invalid tensor size",
}


@pytest.mark.parametrize("name", NOT_ON_GLOO)
def test_what_gloo_refuses_is_told_in_its_own_words(quick: GlooWorld, name: str) -> None:
    outcome = run_calls(quick, [NOT_ON_GLOO[name](3)[:1]] * 3)
    assert any(REFUSED_BY_GLOO[name] in message for message in messages(outcome))


def test_a_dtype_that_nccl_alone_carries_is_carried_by_the_simulated_world(sim: World, quick: GlooWorld) -> None:
    asked = [call("all_gather", dtype="float8_e4m3fn", count=2)]
    assert any("Invalid scalar type" in message for message in messages(run_calls(quick, [asked] * 2)))
    for rank, result in enumerate(results(run_calls(sim, [asked] * 2))):
        assert plain(result["results"]) == plain([expected(asked[0], rank, 2)])


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("waiting_twice", 2),
        ("future", 2),
        ("two_buckets_in_opposite_order", 2),
        ("rows_and_columns", 4),
        ("random_numbers", 3),
        ("environment", 3),
    ],
)
def test_programs_give_the_same_as_on_the_simulated_world(sim: World, gloo: World, name: str, size: int) -> None:
    here, there = (program(world, name, size, {"any": 1}, contents=True) for world in (gloo, sim))
    assert plain(results(here)) == plain(results(there))
    for real, simulated in zip(here, there, strict=True):
        assert plain([collective.sent for collective in real.collectives]) == plain(
            [collective.sent for collective in simulated.collectives]
        )


def test_results_after_wait_are_those_of_the_simulated_world(sim: World, gloo: World) -> None:
    """What is seen before is gloo's business, and so is an input that is overwritten too early."""
    here, there = (results(program(world, "reading_early", 2)) for world in (gloo, sim))
    assert [plain(result["after"][1:3]) for result in here] == [plain(result["after"][1:3]) for result in there]


def test_nothing_leaks_from_one_example_to_the_next(gloo: World) -> None:
    world = GlooWorld()  # of its own: if anything leaks, it must not reach other tests
    try:
        fresh = plain(results(program(world, "look", 2)))
        program(world, "spoil", 2)
        assert plain(results(program(world, "look", 2))) == fresh
    finally:
        world.close()


def pids(world: World, size: int) -> list[int]:
    return [int(result["pid"]) for result in results(run_calls(world, [[USUAL]] * size))]


def test_processes_stay_the_same_from_one_example_to_the_next(gloo: World) -> None:
    four = pids(gloo, 4)
    assert len(set(four)) == 4
    assert pids(gloo, 4) == four
    assert pids(gloo, 2) == four[:2]
    assert pids(gloo, 5)[:4] == four


@pytest.mark.parametrize(
    "other",
    [call("broadcast"), call("all_reduce", count=9), call("all_reduce", dtype="float32"), call("barrier")],
    ids=["operation", "count", "dtype", "barrier"],
)
def test_ranks_that_disagree_are_contained_and_both_sides_told(quick: GlooWorld, other: dict[str, Any]) -> None:
    """gloo may abort the process, raise, hang or add up nonsense; the collectives that were issued show it."""
    before = pids(quick, 2)
    quick.limit = 1.0
    outcome = run_calls(quick, [[call("barrier"), USUAL], [call("barrier"), other]])
    quick.limit = 5.0
    if not any(kinds(outcome)):
        first, second = (report.collectives[1] for report in outcome)
        assert first != second
    assert results(run_calls(quick, [[USUAL]] * 2))
    if any(kinds(outcome)):
        assert gone(before)
        (said,) = {error for error in messages(outcome) if error}
        assert said.startswith("ranks disagree on collective 2 of the default group: rank 0 calls all_reduce(sum, 8 x")
        assert f"rank 1 calls {other['do']}" in said


@pytest.mark.parametrize("since", [1, 3, progress.RECENT - 2, progress.RECENT - 1])
def test_ranks_that_hang_after_they_have_disagreed_are_told_as_disagreeing(quick: GlooWorld, since: int) -> None:
    """gloo does not notice that reductions differ, and NCCL not that counts do: what was launched since is the same."""
    quick.limit = 1.0
    rest = [USUAL] * since + [call("loop_for_ever")]
    outcome = run_calls(quick, [[USUAL, call("all_reduce", reduction=which), *rest] for which in ("sum", "max")])
    quick.limit = 5.0
    told = "ranks disagree on collective 2 of the default group: rank 0 calls all_reduce(sum, 8 x float64), "
    told += "rank 1 calls all_reduce(max, 8 x float64)"
    if since < progress.RECENT - 1:
        assert messages(outcome) == [told, told]
    else:  # of so many nobody has kept a note
        assert kinds(outcome) == ["timeout", "timeout"]


def test_when_all_ranks_hang_the_limit_ends_them(gloo: World) -> None:
    assert results(run_calls(gloo, [[USUAL]] * 2))
    world = GlooWorld(limit=5.0)
    try:
        before = pids(world, 2)
        world.limit = 0.5
        begun = time.monotonic()
        outcome = run_calls(world, [[call("loop_for_ever")], [USUAL]])
        assert kinds(outcome) == ["timeout", "abandoned"]
        assert (
            messages(outcome)[1] == "waited for rank 0 (1 collective launched, the last all_reduce(sum, 8 x float64))"
        )
        assert 0.5 <= time.monotonic() - begun < 5.0
        assert gone(before)
    finally:
        world.close()


def test_a_rank_that_does_not_get_its_job_disagrees_with_nobody(gloo: World) -> None:
    """What it launched last is of the example before."""
    world = GlooWorld(limit=5.0)
    try:
        assert results(run_calls(world, [[USUAL]] * 2))
        world.limit = 0.5
        outcome = run_calls(world, [[call("barrier")]] * 2, order=SlowOnRankZero())
        assert kinds(outcome) == ["timeout", "abandoned"]
        assert messages(outcome)[0].endswith("(0 collectives launched)")
    finally:
        world.close()


def test_a_rank_that_is_alone_has_the_whole_limit(gloo: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the last one that is missing from the start, and nobody waits for it."""
    monkeypatch.setattr(process, "LOOK", 0.01)
    assert results(program(gloo, "computing_for_a_second", 1))


def test_an_example_whose_ranks_issued_different_numbers_of_collectives_spoils_the_pool(quick: GlooWorld) -> None:
    """Nobody failed, but a collective that one rank only has launched would meet the next example's."""
    before = pids(quick, 2)
    outcome = program(quick, "launching_more_on_rank_0", 2)
    assert kinds(outcome) == [None, None]
    assert not set(before) & set(pids(quick, 2))


def test_close_leaves_no_process_and_the_next_run_starts_others(gloo: World) -> None:
    world = GlooWorld(limit=5.0)
    first = pids(world, 2)
    world.close()
    assert gone(first)
    second = pids(world, 2)
    assert not set(second) & set(first)
    world.close()
    assert gone(second)
    world.close()


def test_ranks_hash_names_by_different_seeds_the_same_in_every_run(
    gloo: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under a seed that the user has set for the supervisor."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    again = GlooWorld()
    try:
        first, second = (results(program(each, "hash_of_a_name", 4, "weight")) for each in (gloo, again))
    finally:
        again.close()
    hashes = [each["hash"] for each in first]
    assert hashes[0] != hashes[1]
    assert hashes == [hashes[0], hashes[1]] * 2
    assert [each["hash"] for each in second] == hashes
    assert os.environ["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("ranks", [2, 3], ids="and the next example needs {} ranks".format)
def test_a_rank_that_dies_between_two_examples_is_no_fault_of_the_next(ranks: int) -> None:
    world = GlooWorld()
    try:
        first = pids(world, 2)
        os.kill(first[0], signal.SIGKILL)
        while not world._pool[0].ended():
            time.sleep(0.01)
        outcome = run_calls(world, [[USUAL]] * ranks)
        assert not set(first) & {result["pid"] for result in results(outcome)}
        assert outcome[0].left == ("a process that was killed by SIGKILL after its example",)
        assert all(report.left == () for report in run_calls(world, [[USUAL]] * ranks))
    finally:
        world.close()


class Notes:
    """A child of which nothing is known but how far it was at each look."""

    def __init__(self, *calls: str) -> None:
        self._calls = iter(calls)

    def progress(self) -> Progress:
        return Progress(2, (("default", 0, "broadcast"), ("default", 1, next(self._calls))))


@pytest.mark.parametrize(("seen", "disagree"), [(("barrier", "all_reduce"), False), (("barrier", "barrier"), True)])
def test_ranks_disagree_only_where_two_looks_say_so(seen: tuple[str, str], disagree: bool) -> None:
    """A rank may be writing down its next collective when it is looked at."""
    missing: Any = {0: Notes("all_reduce", "all_reduce"), 1: Notes(*seen)}
    assert pool._disagree({}, missing) is disagree
