"""On a group of ranks of a larger world everything is as on a whole one, and what went wrong is told of the group."""

from dataclasses import replace

import pytest

from lockstep.oracle.events import Backward, EndJoin, Finish, Join, SaveAndLoad, Step
from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import described, look_up
from lockstep.properties.judging import judge
from lockstep.properties.judging.matching import same_collectives
from lockstep.properties.members import as_a_world
from lockstep.properties.ranks import description
from lockstep.properties.reports.failure import story
from lockstep.properties.reports.picture import picture
from lockstep.properties.searching.search import search
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import Trial, job
from lockstep.properties.verdict import Crashes, Hangs, Refused, SilentlyWrong
from lockstep.worlds.contract import Collective, Hazard, Passage, RankError, RankReport, World, group_label

TWO = (Parameter((2,)), Parameter((3,)))
BATCH = (Backward(((0, 1), (1, 0))), Finish())
ON_A_GROUP = Scenario(2, TWO, (*BATCH, Step(), SaveAndLoad(), *BATCH), outsiders=2)
RIGHT = (
    *(f"lockstep.impls.twins.subgroups:{twin}" for twin in ("InAGroup", "ShardsInAGroup", "AddsUpInAGroup")),
    *(f"lockstep.impls.frameworks.torch_ddp:TorchDDP{form}" for form in ("", "FindUnused", "Hook")),
)
OWN = "lockstep.impls.twins.subgroups:GroupOfItsOwn"
WEIGHING = "lockstep.properties.ranks.held_bytes:weigh_program"


@pytest.mark.parametrize("name", [*RIGHT, OWN])
@pytest.mark.parametrize("where", ["sim", "gloo"])
def test_who_trains_on_the_group_that_is_given_is_right(name: str, where: str, request: pytest.FixtureRequest) -> None:
    under_test = trial_of(name, request.getfixturevalue(where))
    run = under_test.run(ON_A_GROUP)
    judge.values_equal(run, under_test.expected(ON_A_GROUP), "Wrong.")
    same_collectives(run, "Other collectives.")
    assert len(run.outcome) == 2
    groups = {call.group for calls in run.collectives for call in calls}
    own = {group for group in groups if group.startswith("ranks 0,1, ")}
    assert groups == (own if name == OWN else {"default"})
    assert {call.root for calls in run.collectives for call in calls if call.operation == "broadcast"} == {0}


@pytest.mark.parametrize("name", ["lockstep.impls.frameworks.torch_ddp:TorchDDP"])
def test_ranks_of_a_group_may_run_out_of_micro_batches(sim: World, name: str) -> None:
    """The last of them tells the others, by whichever of its numbers."""
    window = (Join(DIVISORS[0]), *BATCH, Backward(((0, 1), ()), gone=(1,)), Finish(), Step(), EndJoin())
    under_test, scenario = trial_of(name, sim), Scenario(2, TWO, window, outsiders=1)
    judge.values_equal(*under_test.run_and_expect(scenario), "Wrong.")


def test_a_member_holds_what_it_holds_in_a_world_of_its_own(sim: World) -> None:
    under_test = trial_of("lockstep.impls.twins.subgroups:ShardsInAGroup", sim)
    program = (*BATCH, Step(), *BATCH)
    of_a_world, of_a_group = (
        under_test.run(Scenario(2, TWO, program, outsiders=number), function=WEIGHING).observations for number in (0, 1)
    )
    assert [seen["bytes"] for seen in of_a_group] == [seen["bytes"] for seen in of_a_world]


def test_a_rank_of_the_world_for_one_of_the_group_is_no_refusal(sim: World) -> None:
    """c10d's ValueError, on every rank and while it constructs, is about the call and not about groups."""
    under_test = trial_of("lockstep.impls.faults.subgroups:RootOfTheWorld", sim)
    judge.values_equal(*under_test.run_and_expect(replace(ON_A_GROUP, outsiders=0)), "Wrong.")
    with pytest.raises(Crashes, match="Global rank 0 is not part of group"):
        under_test.run(ON_A_GROUP)


def test_what_refuses_every_group_but_the_whole_world_refuses(sim: World) -> None:
    under_test = trial_of("lockstep.properties.tests.undeclared:WholeWorldOnly", sim)
    judge.values_equal(*under_test.run_and_expect(replace(ON_A_GROUP, outsiders=0)), "Wrong.")
    with pytest.raises(Refused, match="only the whole world"):
        under_test.run(ON_A_GROUP)


def test_who_forgets_the_group_hangs_in_words_of_the_group(sim: World) -> None:
    with pytest.raises(Hangs) as broken:
        trial_of("lockstep.impls.faults.subgroups:ForgetsTheGroupOnce", sim).run(replace(ON_A_GROUP, outsiders=1))
    told = broken.value.headline
    assert "the world's rank 0 has ended without any collective; rank 0 waits for all_reduce" in told
    assert "collective 1 of the whole world; rank 1 waits" in told
    of_the_group, of_all = (
        {call.group for call in broken.value.outcome[0].collectives if call.operation == each}
        for each in ("broadcast", "all_reduce")
    )
    assert (of_the_group, of_all) == ({"default"}, {"ranks 0,1, the whole world"})
    assert any("float32) on the whole world" in line for line in picture(ON_A_GROUP, broken.value.outcome))


def test_the_report_shows_the_group_as_the_program_does(sim: World) -> None:
    law = every_law()["test_gradients_equal_the_mean_over_ranks"]
    under_test = trial_of("lockstep.impls.faults.subgroups:DividesByTheWorld", sim)
    (failure,) = search(law, under_test, 300, seed_value=0).failures
    assert failure.broken.scenario == Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()), outsiders=1)
    told = "\n".join(story(law, under_test, diagnose(under_test, failure, to_the_core=False)))
    assert "2 ranks, a group: ranks 1 and 2 of a world of 3, whose" in told
    assert "rank 0 sends     | a[0] = 1" in told
    assert "every rank gets" in told
    assert "1/2 of rank 0's a[0] + 1/2 of rank 1's a[0]." in told


def test_a_root_that_is_counted_twice_is_silent(sim: World) -> None:
    under_test = trial_of("lockstep.impls.faults.subgroups:RootCountedTwice", sim)
    scenario = replace(ON_A_GROUP, outsiders=1)
    with pytest.raises(SilentlyWrong):
        judge.values_equal(*under_test.run_and_expect(scenario), "Wrong.")


MESSAGE = (
    "rank 2 waits for broadcast(from rank 1, 4 x float32), collective 3 of the ranks 1,2, 1 group; rank 0, 1 and rank "
    "1, 2 wait for barrier(), collective 1 of the default group, or for the ranks 0,2, 7 group"
)
INSIDE = (
    "rank 1 waits for broadcast(from rank 0, 4 x float32), collective 3 of the default group; the world's rank 0 and "
    "rank 0 and rank 0, 1 wait for barrier(), collective 1 of the whole world, or for the ranks 1, 7 group"
)


def test_reports_are_told_by_ranks_of_the_group() -> None:
    scenario = replace(ON_A_GROUP, outsiders=1)
    calls = [
        Collective("broadcast", "", "float32", 1, 2, group_label((1, 2), "1")),
        Collective("all_reduce", "sum", "float32", 1, -1, "default"),
        Collective("all_reduce", "sum", "float32", 1, -1, group_label((0, 2), "7")),
        Collective("send", "", "float32", 1, 0, "default"),
    ]
    report = RankReport(
        None,
        RankError("deadlock", MESSAGE),
        tuple(calls),
        timeline=(Passage(calls[0], (1, 2), 4, 1, 2, 3, 4, 1),),
        hazards=(Hazard("used", 2, calls[0], 1, "add", "file:1"),),
    )
    outside = RankReport({}, None)
    (told, same) = as_a_world((outside, report, report), scenario)
    assert told == same
    groups = ["default", "ranks 0,1, the whole world", "ranks 1, 7", "ranks 0,1, the whole world"]
    assert [call.group for call in told.collectives] == groups
    assert [call.root for call in told.collectives] == [1, -1, -1, -1]
    assert (told.timeline[0].members, told.timeline[0].collective) == ((0, 1), told.collectives[0])
    assert (told.hazards[0].rank, told.hazards[0].collective) == (1, told.collectives[0])
    assert told.error is not None
    assert told.error.message == INSIDE
    assert as_a_world((report,), replace(scenario, outsiders=0)) == (report,)


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("undeclared:WholeWorldOnly", "group"),
        ("undeclared:NumbersItsGroups", None),
        ("user_code:NeedsAGroup", None),
        ("undeclared:Averaging", None),
    ],
)
def test_a_group_is_given_where_it_may_be_left_out(name: str, argument: str | None) -> None:
    """What is a number where nobody gives it is another kind of group."""
    found = described(f"lockstep.properties.tests.{name}", description.describe(f"lockstep.properties.tests.{name}"))
    assert (found.group, found.claims.subgroups) == (argument, argument is not None)


def test_a_world_has_as_many_ranks_as_the_group_and_the_others(sim: World) -> None:
    (implementation,) = look_up(["lockstep.impls.twins.subgroups:InAGroup"], sim)
    assert job(implementation.name, ON_A_GROUP).world_size == 4
    fewer = replace(implementation, claims=replace(implementation.claims, most_ranks=3))
    with pytest.raises(RuntimeError, match="more than 3 ranks"):
        Trial(fewer, sim).run(ON_A_GROUP)
