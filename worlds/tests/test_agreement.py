"""What ranks must agree on, what each must hand over, and what is told where they do not: simulated, and on gloo."""

from typing import Any

import pytest
import torch.distributed as dist

from lockstep.worlds.contract import Asynchrony, Collective, Outcome, World
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.sim.agreement import disagreeing
from lockstep.worlds.sim.ranks import Ended
from lockstep.worlds.tests import outcomes
from lockstep.worlds.tests.outcomes import call, kinds, messages, plain, results, run_calls


def program(world: World, name: str, world_size: int, payload: Any = None, **options: Any) -> Outcome:
    """The outcome of a function of `worlds.tests.encounters`."""
    return outcomes.program(world, name, world_size, payload, module="encounters", **options)


# Ranks that differ in this alone, and what the message says of each.
DISAGREEMENTS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "root of a gather": (
        *(call("gather", root=0), call("gather", root=2)),
        *("gather(to rank 0, 8 x float64)", "gather(to rank 2, 8 x float64)"),
    ),
    "count of a gather": (
        *(call("gather", root=0), call("gather", root=0, count=4)),
        *("gather(to rank 0, 8 x float64)", "gather(to rank 0, 4 x float64)"),
    ),
    "root of a scatter": (
        *(call("scatter", root=0, count=6), call("scatter", root=1, count=6)),
        *("scatter(from rank 0, 2 x float64)", "scatter(from rank 1, 2 x float64)"),
    ),
    "dtype of an all_to_all": (
        *(call("all_to_all_single", count=6), call("all_to_all_single", count=6, dtype="int64")),
        *("6 x float64, gives 2+2+2, takes 2+2+2", "6 x int64, gives 2+2+2, takes 2+2+2"),
    ),
    "parts of an all_to_all": (
        *(call("all_to_all_single", count=6), call("all_to_all_single", count=9)),
        *("6 x float64, gives 2+2+2, takes 2+2+2", "9 x float64, gives 3+3+3, takes 3+3+3"),
    ),
    "uneven parts of a reduce_scatter": (
        *(call("reduce_scatter_uneven"), call("reduce_scatter", count=9)),
        *("reduce_scatter(sum, 9 x float64, gives 1+3+5)", "reduce_scatter(sum, 9 x float64)"),
    ),
    "bits": (
        *(call("reduce_bits", reduction="bor", dtype="int64"), call("reduce_bits", reduction="bxor", dtype="int64")),
        *("all_reduce(bor, 8 x int64)", "all_reduce(bxor, 8 x int64)"),
    ),
    "a barrier and a monitored one": (call("barrier"), call("monitored_barrier"), "barrier()", "monitored_barrier()"),
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
@pytest.mark.parametrize("odd_one", [0, 1, 2])
def test_ranks_that_disagree_are_all_told_both_sides(sim: World, what: str, odd_one: int) -> None:
    usual, different, said_by_most, said_by_one = DISAGREEMENTS[what]
    by_rank = [[call("barrier"), different if rank == odd_one else usual] for rank in range(3)]
    outcome = run_calls(sim, by_rank)
    assert kinds(outcome) == ["mismatch"] * 3
    (message,) = set(messages(outcome))
    assert said_by_one in message.partition(f"rank {odd_one} calls ")[2]
    assert said_by_most in message
    assert "collective 2 of the default group" in message


@pytest.mark.parametrize(
    ("gives", "takes", "agree"),
    [((1, 0), (2, 0), True), ((2, 0), (2, 0), False), ((1, 0), (3, 0), False), ((1, 5), (2, 5), True)],
)
def test_in_an_all_to_all_what_one_gives_another_takes(
    gives: tuple[int, ...], takes: tuple[int, ...], agree: bool
) -> None:
    first = Collective("all_to_all", "", "float32", 3, -1, "default", (1, 2), (1, 1))
    second = Collective("all_to_all", "", "float32", sum(gives), -1, "default", gives, takes)
    assert disagreeing({0: first}, 1, second) == (None if agree else 0)
    assert disagreeing({1: second}, 0, first) == (None if agree else 1)


def test_a_root_is_named_by_its_global_rank_as_members_are(sim: World) -> None:
    outcome = program(sim, "roots_of_a_subgroup", 4, {"disagree": True})
    (message,) = {told for told in messages(outcome) if told}
    assert "rank 1 calls broadcast(from rank 1, 2 x float64)" in message
    assert "rank 3 calls broadcast(from rank 3, 2 x float64)" in message
    agreed = program(sim, "roots_of_a_subgroup", 4, {"disagree": False})
    roots = [[each.root for each in report.collectives] for report in agreed]
    assert roots == [[], [3, 3, 3, 3, 3, 3], [], [3, 3, 3, 3, 1, 1]]


# What a rank hands over, and what it is told before any other is harmed.
WRONG: dict[str, str] = {
    "a list that is too short": "it needs 2 tensors, one for each rank of the group, got takes [4]",
    "an output that is too small": "the output must have 8 elements, got 7",
    "an output of another dtype": "an output is torch.float64, the input torch.float32",
    "a scatter of elements that cannot be shared": "5 elements cannot be scattered evenly to 2 ranks",
    "a gather of unequal parts": "it needs 2 tensors of one size, one for each rank of the group, got takes [4, 5]",
    "a gather into another shape": "all tensors must have one shape, got [(2, 2), (4,)]",
    "an output for itself of another size": "the output for this rank has 3 elements, its input 4",
    "an all_to_all of rows that cannot be shared": "divides dimension 0 between 2 ranks, got 5; say the splits",
    "splits that do not add up": "the splits [1, 2] must be 2 numbers that add up to dimension 0, which is 4",
    "bits of floats": "bits of float32 cannot be combined; integers and bool can",
    "an average of bool": "bool has no average",
    "a message that is not contiguous": "the tensor must be contiguous, its strides are (1, 2)",
}


@pytest.mark.parametrize("what", WRONG)
def test_what_no_backend_could_carry_out_is_said_on_the_rank_that_asks_for_it(sim: World, what: str) -> None:
    outcome = program(sim, "handing_over_the_wrong", 2, {"what": what, "on": 1})
    assert kinds(outcome) == ["abandoned", "raised"]
    assert WRONG[what] in messages(outcome)[1]
    assert "RuntimeError" in messages(outcome)[1]


@pytest.mark.parametrize("world_name", ["sim", "gloo"])
def test_shapes_may_differ_between_ranks_where_the_counts_are_equal(
    request: pytest.FixtureRequest, world_name: str
) -> None:
    world: World = request.getfixturevalue(world_name)
    first, second = results(program(world, "shapes_that_differ", 2))
    for name, flat in first.items():
        assert flat.shape != second[name].shape
        assert flat.ravel().tolist() == second[name].ravel().tolist()


def deadlock(outcome: Outcome) -> str:
    (message,) = {report.error.message for report in outcome if report.error}
    assert set(kinds(outcome)) <= {"deadlock", None}
    return message


def test_how_a_rank_has_ended_is_told_by_the_last_group_that_it_called() -> None:
    world, pair = (Collective("all_reduce", "sum", "float32", 2, -1, group) for group in ("default", "ranks 0,1"))
    assert str(Ended([world, pair, pair])) == f"has ended after {pair}, call 2 in the ranks 0,1 group"
    assert str(Ended([])) == "has ended without any collective"


def test_two_ranks_that_both_send_first_wait_for_each_other(sim: World) -> None:
    """gloo and nccl do the same; a send that always buffers would hide it."""
    message = deadlock(program(sim, "sending_first", 2))
    assert "rank 0 waits for send(to rank 1, 2 x float64), its message 1 in the default group" in message
    assert "rank 1 waits for send(to rank 0, 2 x float64), its message 1 in the default group" in message


def test_gloo_makes_two_ranks_that_both_send_first_wait_too(gloo: World) -> None:
    assert results(run_calls(gloo, [[call("barrier")]] * 2))
    world = GlooWorld(limit=5.0)
    try:
        assert results(run_calls(world, [[call("barrier")]] * 2))
        world.limit = 0.5
        assert kinds(program(world, "sending_first", 2)) == ["timeout", "timeout"]
    finally:
        world.close()


def test_a_rank_that_waits_for_a_message_says_from_whom_and_with_which_tag(sim: World) -> None:
    message = deadlock(program(sim, "receiving_what_nobody_sends", 3))
    assert "rank 0 waits for recv(from rank 2, 2 x float64, tag 4), its message 1 in the default group" in message
    assert "rank 1 waits for recv(from any rank, 2 x float64), its message 1 in the default group" in message
    assert "rank 2 has ended after barrier(), call 1 in the default group" in message


def test_a_rank_that_never_communicated_is_told_so(sim: World) -> None:
    message = deadlock(run_calls(sim, [[call("barrier")], []]))
    assert message == (
        "rank 0 waits for barrier(), collective 1 of the default group; rank 1 has ended without any collective"
    )


@pytest.mark.parametrize(("what", "said"), [("count", "3 x float64"), ("dtype", "2 x int64")])
@pytest.mark.parametrize("first", [0, 1])
def test_a_message_of_another_count_or_dtype_is_told_on_both_sides(
    sim: World, what: str, said: str, first: int
) -> None:
    """gloo would fill a part of the tensor, or reinterpret its bytes, and tell nobody."""
    outcome = program(sim, "messages_that_differ", 2, {"what": what, "first": first})
    assert kinds(outcome) == ["mismatch", "mismatch"]
    (message,) = set(messages(outcome))
    assert message == (
        "ranks disagree on a message in the default group: rank 0 calls send(to rank 1, 2 x float64), "
        f"rank 1 calls recv(from rank 0, {said})"
    )


def test_gloo_loses_a_message_whose_handle_is_dropped(sim: World, gloo: World) -> None:
    """Unless it could be sent at once. The simulated world delivers it, and names it where it watches."""
    name = "dropping_the_handle_of_a_send"
    outcome = program(sim, name, 2, asynchrony=Asynchrony())
    assert results(outcome)[1]["received"].tolist() == [1, 2]
    assert [[hazard.kind for hazard in report.hazards] for report in outcome] == [["dropped"], []]
    assert results(run_calls(gloo, [[call("barrier")]] * 2))
    world = GlooWorld(limit=5.0)
    try:
        assert results(run_calls(world, [[call("barrier")]] * 2))
        world.limit = 0.5
        assert kinds(program(world, name, 2))[1] == "timeout"
    finally:
        world.close()


def test_gloo_does_not_know_of_a_message_that_it_is_done_before_somebody_waits(sim: World, gloo: World) -> None:
    for world, known in ((sim, True), (gloo, False)):
        for rank, result in enumerate(results(program(world, "looking_at_messages_that_are_there", 2))):
            assert result["known"] == [known, known]
            assert result["received"].tolist() == ([11, 12], [1, 2])[rank]


def test_gloo_waits_for_ever_for_a_message_that_has_been_waited_for(sim: World) -> None:
    assert [each["received"] for each in results(program(sim, "waiting_twice_for_a_message", 2))] == [0.0, 0.0]
    world = GlooWorld(limit=2.0)
    try:
        assert kinds(program(world, "waiting_twice_for_a_message", 2)) == ["timeout", "timeout"]
    finally:
        world.close()


@pytest.mark.parametrize("name", ["subgroups", "backends_by_name", "coalescing_with_a_device"])
def test_groups_of_every_kind_do_what_they_mean(sim: World, gloo: World, name: str) -> None:
    here = results(program(sim, name, 4))
    assert all(all(result.values()) for result in here)
    if name != "coalescing_with_a_device":  # gloo has none
        assert plain(results(program(gloo, name, 4))) == plain(here)


@pytest.mark.skipif(not hasattr(dist, "gather_single"), reason="torch has gather_single from 2.14 on")
def test_gather_into_one_tensor_gives_the_root_all(sim: World) -> None:
    """gloo 2.14 says that it does not support it."""
    outputs = [result["output"].tolist() for result in results(program(sim, "gathering_into_one_tensor", 3))]
    assert outputs == [[0] * 6, [1, 2, 11, 12, 21, 22], [0] * 6]
