"""The simulated world: what collectives mean, what a rank can see when, and how ranks that do not match are told."""

import itertools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lockstep.worlds.contract import Job, Outcome, World
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.meaning import CASES, NOT_ON_GLOO, expected
from lockstep.worlds.tests.outcomes import Calls, call, kinds, messages, plain, program, results, run_calls

SIZES = range(1, 9)


@pytest.fixture(scope="module")
def other() -> Iterator[SimWorld]:
    """A simulated world in a process of its own, with a limit that a test may wait for."""
    world = SimWorld(limit=2.0)
    yield world
    world.close()


@pytest.mark.parametrize("name", CASES | NOT_ON_GLOO)
def test_every_collective_does_what_it_means_on_1_to_8_ranks(sim: World, name: str) -> None:
    for size in SIZES:
        for asked in (CASES | NOT_ON_GLOO)[name](size):
            for rank, result in enumerate(results(run_calls(sim, [[asked]] * size))):
                assert plain(result["results"][0]) == plain(expected(asked, rank, size))


def a_nan_from_each(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The least, the largest and the sum over ranks of a vector in which each rank has a NaN at its own place."""
    own = torch.arange(float(world_size)) + rank
    own[rank] = float("nan")
    reduced = {}
    for operation in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.SUM):
        values = own.clone()
        dist.all_reduce(values, operation)
        reduced[str(operation)] = values.tolist()
    return reduced


def test_a_nan_is_lost_in_min_and_max_and_kept_in_a_sum(sim: World) -> None:
    for report in sim.run(Job(f"{__name__}:a_nan_from_each", "{}", 3)):
        least, most, total = (report.result or {}).values()
        assert (least, most) == ([1, 1, 2], [2, 3, 3])
        assert np.isnan(total).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int32", "uint8"])
def test_collectives_carry_every_dtype(sim: World, dtype: str) -> None:
    for do in ("all_reduce", "broadcast", "all_gather", "reduce_scatter_tensor"):
        told = call(do, dtype=dtype, count=6)
        for rank, result in enumerate(results(run_calls(sim, [[told]] * 3))):
            assert plain(result["results"][0]) == plain(expected(told, rank, 3))


def test_what_ranks_issued_and_sent_is_reported_in_order(sim: World) -> None:
    by_rank = [
        [call("broadcast", root=1), call("reduce_scatter", dtype="bfloat16", reduction="average"), call("barrier")]
    ] * 2
    outcome = run_calls(sim, by_rank, contents=True)
    words = ["broadcast(from rank 1, 8 x float64)", "reduce_scatter(average, 8 x bfloat16)"]
    for rank, report in enumerate(outcome):
        assert [str(collective) for collective in report.collectives[:2]] == words
        assert [collective.operation for collective in report.collectives] == ["broadcast", "reduce_scatter", "barrier"]
        for collective in report.collectives[:2]:
            assert collective.sent is not None
            assert collective.sent.tolist() == [value + 10 * rank for value in range(1, 9)]
        broadcast, scattered, _ = report.collectives
        assert (broadcast.got is None) == (rank == 1)  # the root, to whose tensor nothing is written
        assert scattered.got is not None
        assert scattered.got.tolist() == [value + 5 for value in ((1, 2, 3, 4), (5, 6, 7, 8))[rank]]
    assert all(
        collective.sent is collective.got is None
        for report in run_calls(sim, by_rank)
        for collective in report.collectives
    )


def test_what_messages_carry_is_reported_of_the_rank_that_sends(sim: World) -> None:
    for rank, report in enumerate(run_calls(sim, [[call("tagged", count=2)]] * 2, contents=True)):
        sent = [None if each.sent is None else each.sent.tolist() for each in report.collectives]
        own = [1 + 10 * rank, 2 + 10 * rank]
        assert [each.operation for each in report.collectives] == ["send", "send", "recv", "recv"]
        assert sent == [own, [3 * value for value in own], None, None]


def test_a_collective_that_goes_past_the_group_is_refused_and_not_lost(sim: World) -> None:
    for message in messages(program(sim, "going_past_the_group", 2)):
        assert "collective operation error" in message


def test_results_are_seen_after_wait_and_only_then(sim: World) -> None:
    for rank, result in enumerate(results(program(sim, "reading_early", 2))):
        own = [1 + 10 * rank, 2 + 10 * rank]
        assert [values.tolist() for values in result["before"]] == [own, [0, 0, 0, 0], [0], own]
        assert result["completed"] == [True] * 3
        assert [values.tolist() for values in result["after"]] == [[12, 14], [1, 2, 11, 12], [12 + 2 * rank], own]


def test_with_at_once_results_are_there_when_the_call_returns(sim: World) -> None:
    for rank, result in enumerate(results(program(sim, "reading_early", 2, at_once=True))):
        summed, gathered = [12, 14], [1, 2, 11, 12]
        assert [values.tolist() for values in result["before"]] == [summed, gathered, [12 + 2 * rank], summed]


def test_a_second_wait_writes_nothing(sim: World) -> None:
    assert all(result["values"].tolist() == [-1, -1] for result in results(program(sim, "waiting_twice", 3)))


def test_the_future_of_a_collective_has_its_result(sim: World) -> None:
    for result in results(program(sim, "future", 2)):
        assert (result["values"].tolist(), result["doubled"].tolist()) == ([12, 14], [24, 28])


def test_subgroups_have_members_roots_and_sequences_of_their_own(sim: World) -> None:
    outcome = program(sim, "rows_and_columns", 4)
    for rank, result in enumerate(results(outcome)):
        row, column = (rank // 2 * 2, rank // 2 * 2 + 1), (rank % 2, rank % 2 + 2)
        for name, members in (("row", row), ("column", column)):
            assert result[name].tolist() == [2 + 10 * sum(members), 4 + 10 * sum(members)]
        assert result["from root"].tolist() == [21 + 10 * (rank % 2), 22 + 10 * (rank % 2)]
        inside = [group.index(rank) if rank in group else -1 for group in ((0, 1), (2, 3), (0, 2), (1, 3))]
        assert result["member"] == inside
        groups = {collective.group.partition(", ")[0] for collective in outcome[rank].collectives}
        assert groups == {f"ranks {row[0]},{row[1]}", f"ranks {column[0]},{column[1]}"}


def test_groups_have_names(sim: World) -> None:
    first, second = results(program(sim, "group_names", 2))
    assert first == second
    assert len(set(first["names"])) == 2


def test_buckets_of_equal_size_in_opposite_order_add_up_wrongly_and_nobody_is_told(sim: World) -> None:
    """As every real backend does: positions match and sizes agree."""
    for result in results(program(sim, "two_buckets_in_opposite_order", 2)):
        assert sorted([*result["a"].tolist(), *result["b"].tolist()]) == [13, 13]


USUAL = call("all_reduce")
DISAGREEMENTS = {
    "operation": (USUAL, call("broadcast"), "all_reduce(sum, 8 x float64)", "broadcast(from rank 0, 8 x float64)"),
    "reduction": (USUAL, call("all_reduce", reduction="max"), "(sum, 8 x float64)", "all_reduce(max, 8 x float64)"),
    "dtype": (USUAL, call("all_reduce", dtype="float32"), "(sum, 8 x float64)", "all_reduce(sum, 8 x float32)"),
    "count": (USUAL, call("all_reduce", count=9), "(sum, 8 x float64)", "all_reduce(sum, 9 x float64)"),
    "one into four": (call("broadcast", count=1), call("broadcast", count=4), "1 x float64", "4 x float64"),
    "root": (call("broadcast"), call("broadcast", root=1), "from rank 0", "from rank 1"),
    "root of a reduce": (call("reduce"), call("reduce", root=1), "reduce(sum, to rank 0", "reduce(sum, to rank 1"),
    "a barrier": (USUAL, call("barrier"), "all_reduce(sum, 8 x float64)", "barrier"),
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
@pytest.mark.parametrize("odd_one", [0, 1, 2])
def test_ranks_that_disagree_are_all_told_both_sides(sim: World, what: str, odd_one: int) -> None:
    usual, different, said_by_most, said_by_one = DISAGREEMENTS[what]
    by_rank: Calls = [[call("barrier"), usual] for _ in range(3)]
    by_rank[odd_one][1] = different
    outcome = run_calls(sim, by_rank)
    assert kinds(outcome) == ["mismatch"] * 3
    (message,) = set(messages(outcome))
    assert "collective 2 of the default group" in message
    assert f"rank {odd_one} calls" in message
    assert said_by_most in message
    assert said_by_one in message


def test_ranks_of_a_subgroup_that_disagree_are_named_by_their_global_ranks(sim: World) -> None:
    outcome = program(sim, "mismatch_in_a_subgroup", 4)
    assert kinds(outcome) == [None, "mismatch", None, "mismatch"]
    for message in (messages(outcome)[1], messages(outcome)[3]):
        assert "ranks 1,3" in message
        assert "rank 1 calls all_reduce(sum, 1 x float64)" in message
        assert "rank 3 calls all_reduce(sum, 3 x float64)" in message


def deadlock(outcome: Outcome) -> str:
    """The one message that all ranks that wait have; nobody looked at a clock."""
    assert "timeout" not in kinds(outcome)
    (message,) = {report.error.message for report in outcome if report.error and report.error.kind == "deadlock"}
    return message


def test_a_rank_that_ends_early_is_a_deadlock_that_names_what_the_others_wait_for(sim: World) -> None:
    by_rank = [[call("barrier"), USUAL], [call("barrier")], [call("barrier"), USUAL]]
    outcome = run_calls(sim, by_rank)
    assert kinds(outcome) == ["deadlock", None, "deadlock"]
    waits = "waits for all_reduce(sum, 8 x float64), collective 2 of the default group"
    ended = "has ended after barrier(), call 1 in the default group"
    assert deadlock(outcome) == f"rank 0 {waits}; rank 1 {ended}; rank 2 {waits}"


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_deadlock_that_names_both(sim: World) -> None:
    outcome = program(sim, "waiting_across_groups", 2)
    assert kinds(outcome) == ["deadlock", "deadlock"]
    ours, theirs = deadlock(outcome).split("; ")
    assert ours.startswith("rank 0 waits for all_reduce(sum, 2 x float64), collective 1 of the default group")
    assert theirs.startswith("rank 1 waits for all_reduce(sum, 2 x float64), collective 1 of the ranks 0,1")


@pytest.mark.parametrize(("how", "said"), [("fail", "RuntimeError: rank 1 had enough"), ("sys_exit", "SystemExit: 3")])
def test_a_rank_that_fails_is_told_apart_from_those_that_waited_for_it(sim: World, how: str, said: str) -> None:
    outcome = run_calls(sim, [[USUAL], [call(how)], [USUAL]])
    assert kinds(outcome) == ["abandoned", "raised", "abandoned"]
    assert messages(outcome)[1] == said
    assert f"rank 1 raised {said}" in messages(outcome)[0]
    assert outcome[1].error is not None
    assert f"in {how}" in outcome[1].error.details  # the traceback


def test_the_notes_of_an_exception_are_reported(sim: World) -> None:
    (report,) = run_calls(sim, [[call("fail")]])
    assert report.error is not None
    assert report.error.notes == ("at the third step",)


def test_a_rank_that_swallows_a_deadlock_gets_another_and_the_example_ends(sim: World) -> None:
    zero, one = results(program(sim, "swallowing_errors", 2))
    assert (zero["caught"], one["caught"]) == (3, 0)


def test_the_next_example_is_sound_after_every_kind_of_failure(sim: World) -> None:
    failures = ([[USUAL], []], [[USUAL], [call("barrier")]], [[USUAL], [call("fail")]], [[call("sys_exit")]] * 2)
    for by_rank in failures:
        assert any(kinds(run_calls(sim, by_rank)))
        for rank, result in enumerate(results(run_calls(sim, [[USUAL]] * 2))):
            assert plain(result["results"][0]) == plain(expected(USUAL, rank, 2))


@pytest.mark.parametrize(
    ("name", "size", "payload"),
    [
        ("all_kinds_of_values", 5, {"anything": [1, 2.5, None]}),
        ("random_numbers", 3, None),
        ("rows_and_columns", 4, None),
        ("waiting_across_groups", 2, None),
        ("mismatch_in_a_subgroup", 4, None),
        ("calls", 3, [[USUAL], [call("fail")], [USUAL]]),
    ],
)
def test_the_same_example_has_the_same_outcome_every_time_and_in_every_process(
    sim: World, other: World, name: str, size: int, payload: Any
) -> None:
    outcomes = [plain(program(world, name, size, payload)) for world in (sim, sim, sim, other)]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_nothing_leaks_from_one_example_to_the_next() -> None:
    world = SimWorld()  # of its own: if anything leaks, it must not reach other tests
    try:
        fresh = plain(results(program(world, "look", 2)))
        results(program(world, "spoil", 2))
        assert plain(results(program(world, "look", 2))) == fresh
    finally:
        world.close()


def test_every_rank_has_random_numbers_of_its_own_that_begin_alike(sim: World) -> None:
    """As processes that all call manual_seed(0) have; no rank's draws depend on another's."""
    first, *others = results(program(sim, "random_numbers", 3))
    assert len(set(first["drawn"].tolist())) == 4
    assert all(np.array_equal(first["drawn"], drawn["drawn"]) for drawn in others)


def test_every_rank_is_told_who_it_is_as_torchrun_would(sim: World) -> None:
    for rank, told in enumerate(results(program(sim, "environment", 3))):
        assert told == {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}


@pytest.mark.parametrize(("how", "said"), [("os_exit", "exited with code 3"), ("kill", "was killed by SIGKILL")])
def test_a_process_that_dies_is_reported_on_all_ranks_and_replaced(other: World, how: str, said: str) -> None:
    outcome = run_calls(other, [[USUAL], [call(how)]])
    assert kinds(outcome) == ["died", "died"]
    assert all(said in message for message in messages(outcome))
    assert [report.error.details.strip() for report in outcome if report.error] == [
        "rank 1 leaves" * (how == "os_exit")
    ] * 2
    assert results(run_calls(other, [[USUAL]] * 2))


def test_a_process_that_is_lost_between_two_examples_is_no_fault_of_the_next() -> None:
    world = SimWorld()
    try:
        (first, _) = results(run_calls(world, [[USUAL]] * 2))
        assert world._child is not None
        os.kill(first["pid"], signal.SIGKILL)
        while not world._child.ended():
            time.sleep(0.01)
        outcomes = [run_calls(world, [[USUAL]] * 2) for _ in range(2)]
        assert all(map(results, outcomes))
        told = "a process that was killed by SIGKILL after its example"
        assert [report.left for outcome in outcomes for report in outcome] == [(told,), (), (), ()]
    finally:
        world.close()


@pytest.mark.parametrize(
    ("name", "payload", "where"),
    [
        ("calls", [[USUAL], [call("loop_for_ever")]], "in loop_for_ever"),
        ("waiting_outside_the_world", None, "in waiting_outs"),
    ],
)
def test_what_no_baton_can_see_ends_at_the_limit_with_the_stacks_of_the_ranks(
    name: str, payload: Any, where: str
) -> None:
    world = SimWorld(limit=2.0)
    try:
        results(run_calls(world, [[USUAL]] * 2))
        world.limit = 0.5
        outcome = program(world, name, 2, payload)
        assert kinds(outcome) == ["timeout", "timeout"]
        assert set(messages(outcome)) == {"no answer within 0.5 s"}
        assert all(report.error is not None and where in report.error.details for report in outcome)
        world.limit = 10.0
        assert results(run_calls(world, [[USUAL]] * 2))
    finally:
        world.close()


def test_examples_of_all_sizes_take_turns_on_the_same_world(sim: World) -> None:
    pids = set()
    for size in itertools.chain(SIZES, reversed(SIZES)):
        for rank, result in enumerate(results(run_calls(sim, [[USUAL]] * size))):
            pids.add(result["pid"])
            assert plain(result["results"][0]) == plain(expected(USUAL, rank, size))
    assert len(pids) == 1
