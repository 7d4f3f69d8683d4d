"""What torch's own threaded test world lets pass, each shown on the simulated world (torch 2.13, multi_threaded_pg.py).

That world carries out what the first caller asked for on whatever the others brought, and does so at the launch.
"""

import pytest

from lockstep.worlds.contract import Asynchrony, World
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.outcomes import call, kinds, messages, plain, program, results, run_calls
from lockstep.worlds.tests.test_asynchrony import run as fly

SUM = call("all_reduce", dtype="float32", count=4)
DISAGREEMENTS = {
    "all-reduce against broadcast": (SUM, call("broadcast", dtype="float32", count=4)),
    "sum against max": (SUM, call("all_reduce", dtype="float32", count=4, reduction="max")),
    "float32 against float64": (SUM, call("all_reduce", dtype="float64", count=4)),
    "one element broadcast into four": (call("broadcast", count=1), call("broadcast", count=4)),
    "shapes that differ": (SUM, call("all_reduce", dtype="float32", count=6)),
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_disagree_are_all_told_at_once(sim: World, what: str) -> None:
    """There: no error, or one on rank 0 only; values silently cast, broadcast or reduced the first caller's way."""
    for here, there in (DISAGREEMENTS[what], DISAGREEMENTS[what][::-1]):
        outcome = run_calls(sim, [[here], [there]])
        assert kinds(outcome) == ["mismatch", "mismatch"]
        (message,) = set(messages(outcome))
        assert "rank 0 calls" in message
        assert "rank 1 calls" in message


def test_two_buckets_of_one_shape_in_opposite_order_show_in_what_was_sent(sim: World) -> None:
    """No backend can tell; but the values are wrong, and the contents of the collectives say which bucket met which."""
    outcome = program(sim, "two_buckets_in_opposite_order", 2, contents=True)
    sent = [[collective.sent.item() for collective in report.collectives] for report in outcome]  # type: ignore[union-attr]
    assert sent == [[1, 2], [12, 11]]
    assert [(result["a"].item(), result["b"].item()) for result in results(outcome)] == [(13, 13), (13, 13)]


def test_a_forgotten_wait_is_seen(sim: World) -> None:
    """There the result is written at the launch."""
    for result in results(program(sim, "reading_early", 2)):
        assert plain(result["before"][3]) == plain(result["after"][3])  # nobody waited: never reduced
        assert plain(result["before"][0]) != plain(result["after"][0])
    outcome = fly(sim, "wrong_flights:wrong", "dropped", 2, Asynchrony())
    assert kinds(outcome) == [None, None], messages(outcome)
    assert [[hazard.kind for hazard in report.hazards] for report in outcome] == [["dropped"]] * 2


def test_several_collectives_of_a_group_are_in_flight_at_once(sim: World) -> None:
    """There: one in a group."""
    zero, _ = program(sim, "reading_early", 2, timeline=True)
    first = zero.timeline[0]
    assert first.waited is not None
    assert all(first.launched < passage.launched < first.waited for passage in zero.timeline[1:4])


def test_the_order_of_reduction_can_be_chosen(sim: World) -> None:
    """There: rank order, and what is 16 bits wide is accumulated in float32."""
    usual, wide = (results(program(sim, "bits_that_get_lost", 3, accumulator=wide)) for wide in ("", "float32"))
    assert [result["sum"].item() for result in (*usual, *wide)] == [256.0] * 3 + [258.0] * 3


def test_each_rank_has_random_numbers_of_its_own(sim: World) -> None:
    """There: all threads share one generator."""
    first, second = results(program(sim, "random_numbers", 2))
    assert plain(first["drawn"]) == plain(second["drawn"])


def test_a_hang_is_seen_without_a_clock() -> None:
    """There: after 300 s."""
    world = SimWorld(limit=600.0)
    try:
        assert kinds(run_calls(world, [[SUM], []])) == ["deadlock", None]
    finally:
        world.close()
