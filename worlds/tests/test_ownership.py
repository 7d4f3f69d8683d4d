"""What processes would own is each simulated rank's own: random numbers, environment, and threads only of its own."""

import functools

import pytest

from lockstep.worlds.contract import World
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.outcomes import kinds, messages, plain, results, run_of

run = functools.partial(run_of, "ownership")


def test_every_rank_draws_what_it_would_draw_alone(sim: World) -> None:
    """Ranks draw different counts of numbers in between; what one draws does not depend on the others."""
    drawn = [result["drawn"] for result in results(run(sim, "drawing", 4))]
    assert [len(set(each)) for each in drawn] == [4 * (3 * (rank + 1) + 2) + 12 * (1 + rank % 2) for rank in range(4)]
    for rank, each in enumerate(drawn):
        assert each[:3] == drawn[0][:3]
        assert each == results(run(sim, "drawing", rank + 1))[rank]["drawn"]


def test_random_numbers_begin_anew_in_every_example(sim: World) -> None:
    first, second = (plain(results(run(sim, "drawing", 3))) for _ in range(2))
    assert first == second


def test_the_whole_environment_is_the_ranks_own_and_does_not_outlive_the_example(sim: World) -> None:
    before = plain(results(run(sim, "looking_at_variables", 3)))
    for rank, result in enumerate(results(run(sim, "setting_variables", 3))):
        home = None if rank == 1 else result["home"]
        assert result["seen"] == [str(rank), f"{rank}!", str(rank), "3", home]
        assert result["in C"] == f"{rank}!\n"
    assert plain(results(run(sim, "looking_at_variables", 3))) == before
    assert [seen["seen"] for seen in results(run(sim, "looking_at_variables", 3))] == [
        [None, str(rank)] for rank in range(3)
    ]


def test_polling_lets_the_others_run_until_it_is_done(sim: World) -> None:
    for size in (2, 3, 5):
        total = 10 * sum(range(size))
        for result in results(run(sim, "polling", size)):
            assert result["values"].tolist() == [size + total, 2 * size + total]


def test_polling_that_can_never_succeed_is_a_deadlock_that_names_what_is_polled(sim: World) -> None:
    outcome = run(sim, "polling_in_vain", 3)
    assert kinds(outcome) == ["deadlock", "deadlock", None]
    polls, waits, ended = messages(outcome)[0].split("; ")
    assert polls == "rank 0 polls all_reduce(sum, 2 x float64), collective 1 of the default group"
    assert waits.startswith("rank 1 waits for all_reduce(sum, 2 x float64), collective 1 of the ranks 0,1")
    assert ended == "rank 2 has ended without any collective"


def test_polling_a_while_in_vain_is_no_deadlock(sim: World) -> None:
    assert [result["completed"] for result in results(run(sim, "polling_a_while", 2))] == [False, False]


@pytest.mark.parametrize("does", ["launches", "waits for", "polls"])
def test_a_collective_from_a_thread_of_the_implementations_own_is_not_runnable_and_named_at_once(does: str) -> None:
    world = SimWorld(limit=60.0)  # nobody looks at it
    try:
        outcome = run(world, "communicating_from_a_thread", 2, does)
        assert kinds(outcome) == ["not runnable"] * 2
        (message,) = set(messages(outcome))
        assert f"rank 0 {does} all_reduce(sum, 2 x float64)" in message
        assert "from a thread of the implementation's own (communicator)" in message
        assert results(run(world, "with_a_thread_that_computes", 2))  # the next example is sound
    finally:
        world.close()


def test_threads_that_do_not_communicate_are_no_ones_business(sim: World) -> None:
    told = [result["told"] for result in results(run(sim, "with_a_thread_that_computes", 2))]
    assert told == [[(0, 2.0)], [(1, 2.0)]]
