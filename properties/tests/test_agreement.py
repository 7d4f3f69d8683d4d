"""What P5 says of groups that not all ranks are in, and of messages."""

from collections.abc import Sequence

import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.judging.matching import same_collectives
from lockstep.properties.trial import Run
from lockstep.properties.verdict import Crashes
from lockstep.worlds.contract import Collective, RankReport, group_label, members_of

RANKS = 3
SCENARIO = Scenario(RANKS, (Parameter((1,)),), (Backward(((0,),) * RANKS), Finish()))
PAIR = group_label((0, 2), "1")


def reduce(group: str, count: int = 1) -> Collective:
    return Collective("all_reduce", "sum", "float32", count, -1, group)


def send(to: int, tag: int = 0, group: str = "default") -> Collective:
    return Collective("send", "", "float32", 1, to, group, tag=tag)


def receive(source: int = -1, tag: int = 0, group: str = "default") -> Collective:
    return Collective("recv", "", "float32", 1, source, group, tag=tag)


def judged(*calls: Sequence[Collective]) -> None:
    outcome = tuple(RankReport({}, None, tuple(each)) for each in calls)
    same_collectives(Run(SCENARIO, outcome, [()] * RANKS), "Apart.")


def test_a_label_tells_the_members() -> None:
    assert members_of("default", 3) == (0, 1, 2)
    assert members_of(PAIR, 3) == (0, 2)
    assert members_of(group_label((5,), "a, b"), 8) == (5,)


def test_right_sequences_are_alike() -> None:
    judged([], [], [])
    judged([reduce(PAIR), reduce("default")], [reduce("default")], [reduce("default"), reduce(PAIR)])
    judged([reduce(group_label((0,), "4"))], [], [])
    judged([send(1), send(2), receive(2)], [receive(0)], [send(0), receive(0)])
    judged([receive(), receive(), send(1)], [send(0), receive(0)], [send(0)])
    judged([receive(1), receive()], [send(0)], [send(0)])
    judged([send(2, group=PAIR), receive(2)], [], [receive(0, group=PAIR), send(0)])


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        (([reduce(PAIR)], [], []), "There are 1 collectives of the ranks 0,2, 1 group on rank 0 and 0 on rank 2."),
        (([], [], [reduce(PAIR)]), "There are 0 collectives of the ranks 0,2, 1 group on rank 0 and 1 on rank 2."),
        (([reduce(PAIR)], [], [reduce(PAIR, 2)]), "Collective 1 of the ranks 0,2, 1 group is all_reduce(sum, 1 x fl"),
        (([], [send(2)], []), "Rank 1 sends a message that rank 2 never receives."),
        (([send(1), send(1)], [], []), "Rank 0 sends 2 messages that rank 1 never receives."),
        (([send(1)], [receive()], [send(1)]), "sends a message that rank 1 never receives."),
        (([send(2)], [receive(0)], []), "Rank 1 expects a message from rank 0 that it never sends."),
        (([], [receive()], []), "Rank 1 expects a message that nobody sends."),
        (([send(2, group=PAIR)], [], [receive(0)]), "Rank 2 expects a message from rank 0 that it never sends."),
    ],
)
def test_whatever_has_no_counterpart_is_told(calls: tuple[Sequence[Collective], ...], says: str) -> None:
    with pytest.raises(Crashes) as broken:
        judged(*calls)
    assert says in str(broken.value)
