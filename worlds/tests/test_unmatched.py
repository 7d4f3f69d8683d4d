"""What ranks launch without its other side is told, although nobody failed, and the next example does not meet it."""

import pytest

from lockstep.worlds.contract import Collective, Job, Outcome, RankError, RankReport, World
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.tests.outcomes import results
from lockstep.worlds.tests.unmatched import UNMATCHED
from lockstep.worlds.unmatched import also_unmatched

SUM, WIDE = (Collective("all_reduce", "sum", "float32", count, -1, "default") for count in (1, 2))
OF_A_PAIR = Collective("all_reduce", "sum", "float32", 1, -1, "ranks 0,2, pair")
MINE, ALL = (Collective("all_gather", "", "float32", count, -1, "default", takes=(1, 2, 1)) for count in (1, 2))


def send(to: int, tag: int = 0, group: str = "default") -> Collective:
    return Collective("send", "", "float32", 1, to, group, tag=tag)


def receive(source: int, tag: int = 0, group: str = "default") -> Collective:
    return Collective("recv", "", "float32", 1, source, group, tag=tag)


def ended(*by_rank: list[Collective]) -> Outcome:
    """Three ranks that have launched these."""
    return tuple(RankReport({}, None, tuple(calls)) for calls in by_rank)


MATCHED = {
    "nothing": ended([], [], []),
    "a group of some": ended([SUM, OF_A_PAIR], [SUM], [OF_A_PAIR, SUM]),
    "counts of each rank's own": ended([MINE], [ALL], [MINE]),
    "messages before and after collectives": ended([SUM, send(1)], [receive(0), SUM], [SUM]),
    "of one tag, in any order": ended([send(1, 7), send(1, 8)], [receive(0, 8), receive(0, 7)], []),
    "from any rank": ended([receive(-1), receive(2), receive(-1)], [send(0)], [send(0), send(0)]),
}
UNEQUAL = {
    "of one member alone": (ended([SUM, SUM], [SUM], [SUM, SUM]), ["all_reduce"], [], ["all_reduce"]),
    "another group": (ended([SUM, OF_A_PAIR], [SUM], [SUM, SUM]), ["all_reduce"], [], ["all_reduce"]),
    "another count": (ended([SUM], [SUM], [WIDE]), ["all_reduce"], ["all_reduce"], ["all_reduce"]),
    "another tag": (ended([send(1, 7)], [receive(0, 9)], []), ["send"], ["recv"], []),
    "another peer": (ended([send(1)], [], [receive(0)]), ["send"], [], ["recv"]),
    "another group of messages": (ended([send(2)], [], [receive(0, group="ranks 0,2, pair")]), ["send"], [], ["recv"]),
    "too many from any rank": (ended([receive(-1), receive(-1)], [send(0)], []), ["recv"], [], []),
    "too few from any rank": (ended([receive(-1)], [send(0), send(0)], []), [], ["send"], []),
}


@pytest.mark.parametrize("name", MATCHED)
def test_of_what_has_its_other_side_nothing_is_told(name: str) -> None:
    assert also_unmatched(MATCHED[name]) == MATCHED[name]


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_has_no_other_side_is_told_on_its_ranks(name: str) -> None:
    outcome, *alone = UNEQUAL[name]
    told = [report.left for report in also_unmatched(outcome)]
    assert told == [tuple(f"an unmatched {operation}" for operation in operations) for operations in alone]


def test_where_a_rank_failed_nothing_more_is_told() -> None:
    failed = (RankReport(None, RankError("raised", "had enough")), *ended([SUM], [SUM]))
    assert also_unmatched(failed) == failed


def run(world: World, name: str, payload: str = "") -> Outcome:
    return world.run(Job(f"lockstep.worlds.tests.unmatched:{name}", payload, 2))


@pytest.mark.parametrize("kind", UNMATCHED)
def test_the_next_example_does_not_meet_it(sim: World, kind: str) -> None:
    """On gloo it has processes of its own; on sim no example meets what another has launched."""
    own = GlooWorld(limit=5.0)
    try:
        for world in (sim, own):
            left = run(world, "leaving_unmatched", kind)
            before = {each["process"] for each in results(left)}
            assert any(each.startswith("an unmatched ") for report in left for each in report.left)
            for source in ("", "from any rank"):
                after = run(world, "exchanging", source)
                assert [each["values"] for each in results(after)] == [[1.0, 0.0], [1.0, 0.0]]
                assert [report.left for report in after] == [(), ()]
                assert world is sim or not before & {each["process"] for each in results(after)}
    finally:
        own.close()


def test_a_message_that_both_ends_drop_reaches_no_later_example(sim: World) -> None:
    """Its calls match, so only that nobody waits for it shows."""
    own = GlooWorld(limit=5.0)
    try:
        for world in (sim, own):
            dropped = run(world, "exchanging_handles")
            alone = () if world is sim else ("a message that nobody has waited for",)
            assert [report.left for report in dropped] == [(), alone]
            after = run(world, "exchanging")
            assert [each["values"] for each in results(after)] == [[1.0, 0.0], [1.0, 0.0]]
            processes = [each["process"] for each in results(after)]
            received = run(world, "exchanging_handles", "wait")
            assert [each["process"] for each in results(received)] == processes
            assert [report.left for report in received] == [(), ()]
    finally:
        own.close()


def test_a_connection_on_which_a_call_has_failed_serves_nobody_else_although_the_error_was_caught() -> None:
    gloo = GlooWorld(limit=5.0)
    try:
        failed = run(gloo, "catching_a_failure")
        assert results(failed)[0] == {"caught": True}
        assert failed[0].left == ("a connection on which monitored_barrier has failed",)
        assert [each["values"] for each in results(run(gloo, "exchanging"))] == [[1.0, 0.0], [1.0, 0.0]]
    finally:
        gloo.close()
