"""The timeline of an example on the simulated world: when each collective was launched, completed and waited for."""

from lockstep.worlds.contract import World
from lockstep.worlds.tests.outcomes import call, program, results, run_calls


def test_times_say_who_launched_waited_and_completed_first(sim: World) -> None:
    """Rank 0 launches four collectives and waits in a barrier; rank 1 completes them all; looks come first."""
    zero, one = program(sim, "reading_early", 2, timeline=True)
    for report in (zero, one):
        assert [passage.collective for passage in report.timeline] == list(report.collectives)
        *watched, never, barrier = report.timeline
        assert never.waited is None
        for passage in (*watched, barrier):
            assert passage.completed is not None
            assert passage.waited is not None
            assert passage.launched < passage.completed < passage.waited
        assert [passage.polled for passage in report.timeline] == [True, True, True, False, False]
    assert [passage.completed for passage in zero.timeline] == [passage.completed for passage in one.timeline]
    times = [passage.launched for report in (zero, one) for passage in report.timeline]
    assert len(set(times)) == 10
    assert max(passage.launched for passage in zero.timeline) < min(passage.launched for passage in one.timeline)


def test_a_collective_that_nobody_completes_has_no_such_time(sim: World) -> None:
    zero, one = run_calls(sim, [[call("barrier"), call("all_reduce")], [call("barrier")]], timeline=True)
    assert [passage.completed is None for passage in zero.timeline] == [False, True]
    assert zero.timeline[1].waited is None
    assert len(one.timeline) == 1


def test_passages_know_group_and_bytes(sim: World) -> None:
    outcome = program(sim, "rows_and_columns", 4, timeline=True)
    results(outcome)
    for rank, report in enumerate(outcome):
        row, column = (rank // 2 * 2, rank // 2 * 2 + 1), (rank % 2, rank % 2 + 2)
        assert sorted(passage.members for passage in report.timeline) == sorted([row, column, column])
        assert [passage.bytes for passage in report.timeline] == [16, 16, 16]


def test_without_being_asked_for_there_is_no_timeline(sim: World) -> None:
    assert [report.timeline for report in program(sim, "rows_and_columns", 4)] == [()] * 4
