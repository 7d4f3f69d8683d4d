"""The script that comes with a counterexample shows what Lockstep has seen, with nothing but torch and the class."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lockstep.oracle.caller import OF_ALL, WAYS, Caller, Differing
from lockstep.oracle.events import (
    ActAlone,
    Backward,
    Clip,
    CopyGradients,
    DropLoss,
    Duplicate,
    Event,
    Finish,
    Move,
    Raise,
    SaveAndLoad,
    Step,
    SwapWeights,
    Unscale,
    ZeroGrad,
)
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.model import Hyperparameters, LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_fault, every_law
from lockstep.properties.claims import Claims
from lockstep.properties.conditions import Conditions
from lockstep.properties.events.backward import TAKEN
from lockstep.properties.implementations import look_up
from lockstep.properties.part import Part
from lockstep.properties.script.whole import script
from lockstep.properties.searching.search import search
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.moments import altered
from lockstep.properties.tests.scripts import HOOK_ORDER, LINES, lines
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Job, World

HALF = Parameter((1,), "bfloat16")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "lockstep.impls.static_buckets:StaticBuckets",
            "lockstep.impls.frameworks.torch_ddp:TorchDDP",
            "lockstep.impls.naive:NaiveAccumulation",
        ),
        *(
            "lockstep.properties.tests.user_code:makes_main_gradients",
            "lockstep.properties.tests.user_code:makes_shards",
        ),
        *("lockstep.impls.twins.starts:StartsAtTheFirstForward", "lockstep.impls.frameworks.replicate:Replicate"),
        *(
            "lockstep.impls.twins.copied:RunsACopy",
            "lockstep.impls.trainer:StaticBucketsTrainer",
            "lockstep.properties.tests.user_code:Clips",
        ),
        *(
            "lockstep.impls.zero1:Zero1",
            "lockstep.impls.zero2:Zero2",
            "lockstep.impls.zero3:Zero3",
            "lockstep.impls.frameworks.fsdp2:FSDP2",
        ),
        *("lockstep.impls.frameworks.fsdp1:FSDP1", "lockstep.impls.frameworks.zero_redundancy:ZeroRedundancy"),
    ],
)
def test_scripts_of_correct_implementations_print_that_everything_is_right(sim: World, name: str) -> None:
    (implementation,) = look_up([name], sim)

    @settings(max_examples=6, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(exact_scenarios(implementation.claims))
    def check(scenario: Scenario) -> None:
        assume(scenario.bucket_cap != 0 or "frameworks" not in name)  # DDP of torch 2.11 refuses it
        printed = lines(sim, name, scenario)
        assert [line for line in printed if not line.endswith(": right")] == []
        looks = len(interpret(scenario, implementation.claims.averaging).gradients)
        assert len(printed) >= looks * scenario.world_size

    check()


@pytest.mark.parametrize(
    "name",
    [
        *(f"lockstep.impls.twins.subgroups:{twin}" for twin in ("InAGroup", "ShardsInAGroup", "GroupOfItsOwn")),
        "lockstep.impls.frameworks.torch_ddp:TorchDDP",
    ],
)
def test_scripts_make_the_group_and_let_the_others_go(sim: World, name: str) -> None:
    (implementation,) = look_up([name], sim)

    @settings(max_examples=6, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(exact_scenarios(implementation.claims, has=("outsiders",)))
    def check(scenario: Scenario) -> None:
        assume(scenario.bucket_cap != 0 or "frameworks" not in name)  # DDP of torch 2.11 refuses it
        printed = lines(sim, name, scenario)
        assert [line for line in printed if not line.endswith(": right")] == []
        looks = len(interpret(scenario, implementation.claims.averaging).gradients)
        assert len(printed) >= looks * scenario.world_size

    check()


@pytest.mark.parametrize(
    "fault", ["LastElementsOfNobody", "ForgetsEarlierBackwards", "OptionsOfItsOwn", "StaleMasters"]
)
def test_scripts_of_sharded_faults_print_what_is_wrong(sim: World, fault: str) -> None:
    name = f"lockstep.impls.faults.sharding:{fault}"
    law = every_law()[every_fault()[name].killed_by[0]]
    (implementation,) = look_up([name], sim)
    (failure, *_) = search(law, Trial(implementation, sim), 100, seed_value=0).failures
    assert any("WRONG" in line for line in lines(sim, name, failure.broken.scenario))


def test_a_script_clips_as_the_implementation_does(sim: World) -> None:
    """Of what makes its optimizer itself, and shards nothing."""
    program = (Backward(((0,), (0,)), overflow=(0,)), Finish(), Unscale(), Clip(1.0), Step(), ZeroGrad())
    scenario = Scenario(2, (Parameter((1,)),), program, loss_scale=LossScale(2.0))
    (implementation,) = look_up(["lockstep.impls.faults.clipping:RaisesOnAnOverflow"], sim)
    outcome = sim.run(Job(LINES, script(implementation, scenario, "A headline.", "script.py"), 2))
    assert all(report.error and "non-finite" in report.error.message for report in outcome)


@pytest.mark.parametrize(
    ("fault", "overflows", "unseen"), [("LooksForInfinity", "nan", "-inf"), ("LooksAtTheFirstElement", "last", "inf")]
)
def test_a_script_overflows_as_the_run_has(sim: World, fault: str, overflows: str, unseen: str) -> None:
    program = (Backward(((1, 0), (0, 1)), overflow=(0,)), Finish(), Step())
    scenario = Scenario(2, (Parameter((2, 2)), Parameter(())), program, loss_scale=LossScale(2.0))
    (implementation,) = look_up([f"lockstep.impls.faults.scaling:{fault}"], sim)
    for how, wrong in ((overflows, True), (unseen, False)):
        otherwise = altered(scenario, (0,), overflows=how)
        text = script(implementation, otherwise, "A headline.", "script.py")
        outcome = sim.run(Job(LINES, text, 2))
        printed = [line for report in outcome if report.result is not None for line in report.result["lines"]]
        assert printed
        assert any("WRONG" in line for line in printed) == wrong


def test_a_script_looks_no_sooner_than_the_law_has(sim: World) -> None:
    """Of what a look mends."""
    window = (Backward(((0,), (0,))), Finish(), Step())
    scenario = Scenario(2, (Parameter((1,)),), window * 2, probe="quadratic")
    fault = "lockstep.impls.faults.unseen:GathersForThoseWhoAsk"
    assert {line.rpartition(": ")[2] for line in lines(sim, fault, scenario)} == {"right"}
    late = lines(sim, fault, scenario, looks=5)
    assert [line for line in late if "WRONG" in line], late


@pytest.mark.parametrize(
    ("fault", "how"),
    [],
    ids=str,
)
def test_a_script_does_otherwise_what_the_run_has_done_otherwise(sim: World, fault: str, how: dict[str, Any]) -> None:
    """And what is right without that shows nothing wrong without it."""
    window = (Backward(((0, 1), (1, 0))), Finish(), Step(), ZeroGrad(False))
    scenario = Scenario(2, (Parameter((2,)), Parameter((1,))), window * 2, probe="quadratic")
    assert {line.rpartition(": ")[2] for line in lines(sim, f"lockstep.impls.faults.{fault}", scenario)} == {"right"}
    assert any("WRONG" in line for line in lines(sim, f"lockstep.impls.faults.{fault}", scenario, **how))
    correct = "lockstep.impls.naive:NaiveAccumulation"
    assert {line.rpartition(": ")[2] for line in lines(sim, correct, scenario, **how)} == {"right"}


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("invariance:PairsSortedNamesWithOrder", {"registered": (1, 0)}),
        ("beside:PoolsBuckets", {"caller": Caller(beside="after")}),
        ("beside:PoolsBuckets", {"caller": Caller(beside="before")}),
        ("beside:OneListOfWorkForAll", {"caller": Caller(joint="after")}),
        ("beside:OneListOfWorkForAll", {"caller": Caller(joint="before")}),
        ("standing:TellsItsCopies", {"caller": Caller(asks_the_wrapper=True)}),
        ("made_anew:MakesThemWhereItWraps", {"caller": Caller(makes_optimizer="before")}),
        ("random_numbers:SeedsAllRanksAlike", {"caller": Caller(seeded=True)}),
    ],
    ids=str,
)
def test_a_script_does_throughout_what_the_run_has_done_throughout(sim: World, fault: str, how: dict[str, Any]) -> None:
    """And what is right without that shows nothing wrong without it."""
    window = (Backward(((0, 1), (1, 0))), Finish(), Step(), ZeroGrad(False))
    scenario = Scenario(2, (Parameter((2,)), Parameter((1,))), window * 2, probe="quadratic")
    wrong, right = f"lockstep.impls.faults.{fault}", "lockstep.impls.naive:NaiveAccumulation"
    assert {line.rpartition(": ")[2] for line in lines(sim, wrong, scenario)} == {"right"}
    assert any("WRONG" in line for line in lines(sim, wrong, replace(scenario, **how)))
    assert {line.rpartition(": ")[2] for line in lines(sim, right, replace(scenario, **how))} == {"right"}


@pytest.mark.parametrize(
    ("fault", "event", "places"),
    [
        ("relocated:KnowsParametersByAddress", Move(), (0,)),
        ("relocated:SendsTheBufferTheyHaveLeft", Move(), (3,)),
        ("replaced:AveragesOneBuffer", CopyGradients(), (4,)),
        ("swapped:EvaluatesWithTheLastStep", SwapWeights(), (3,)),
        ("forwards:CountsForwards", DropLoss(), (0,)),
        ("forwards:CountsForwards", DropLoss(), (2, 4)),
        ("copied:IsItsOwnCopy", Duplicate(), (0, 3)),
        ("copied:PointsWhatIsCalledAtItsOwn", Duplicate(), (3, 6, 7)),
    ],
    ids=str,
)
def test_a_script_has_what_the_caller_does_between_micro_batches(
    sim: World, fault: str, event: Event, places: tuple[int, ...]
) -> None:
    """And what is wrong with it is right without."""
    window = (Backward(((0, 1), (1, 0))), Finish(), Step(), ZeroGrad(False))
    without = Scenario(2, (Parameter((2,)), Parameter((1,))), window * 2, probe="quadratic")
    program = [each for place, one in enumerate(window * 2) for each in ((event, one) if place in places else (one,))]
    scenario, name = replace(without, program=tuple(program)), f"lockstep.impls.faults.{fault}"
    assert {line.rpartition(": ")[2] for line in lines(sim, name, without)} == {"right"}
    assert any("WRONG" in line for line in lines(sim, name, scenario))
    assert {line.rpartition(": ")[2] for line in lines(sim, "lockstep.impls.naive:NaiveAccumulation", scenario)} == {
        "right"
    }


@pytest.mark.parametrize(
    ("fault", "places", "change"),
    [
        ("around:PreparesInItsForward", (0,), {"direct": True}),
        ("around:PreparesInItsForward", (4,), {"direct": True}),
        ("prepared:ForgetsWithItsGradients", (4,), {"meanwhile": "zeroes gradients"}),
        ("prepared:ForgetsWithItsGradients", (4,), {"meanwhile": "drops gradients"}),
        ("interleaved:CoalescesUntilFinished", (0,), {"metric": True}),
        ("interleaved:CoalescesUntilFinished", (0, 4), {"metric": True}),
        ("reading:DividesWhatForwardsGive", (0,), {"loss": "outputs, then parameters"}),
        ("reading:DividesWhatForwardsGive", (0, 4), {"loss": "parameters, then outputs"}),
        ("reading:HidesWhatIsNotUsed", (0, 4), {"loss": "outputs, then parameters"}),
        ("differentiated:AveragesWhereOutputsEnd", (0, 4), {"loss": "gradients"}),
        ("differentiated:AveragesWhereOutputsEnd", (4,), {"loss": "gradients"}),
        ("differentiated:CutsTheGraph", (0, 4), {"loss": "outputs and gradients"}),
    ],
    ids=str,
)
def test_a_script_has_micro_batches_that_are_not_as_usual(
    sim: World, fault: str, places: tuple[int, ...], change: dict[str, Any]
) -> None:
    """And what is right where they are shows nothing wrong there."""
    window = (Backward(((0, 1), (1, 0))), Finish(), Step(), ZeroGrad(False))
    scenario = Scenario(2, (Parameter((2,)), Parameter((1,))), window * 2, probe="quadratic")
    assert {line.rpartition(": ")[2] for line in lines(sim, f"lockstep.impls.faults.{fault}", scenario)} == {"right"}
    other = altered(scenario, places, **change)
    assert any("WRONG" in line for line in lines(sim, f"lockstep.impls.faults.{fault}", other))
    assert {line.rpartition(": ")[2] for line in lines(sim, "lockstep.impls.naive:NaiveAccumulation", other)} == {
        "right"
    }


def test_a_script_evaluates_between_forward_and_backward(sim: World) -> None:
    window = (Backward(((0, 1), (1, 0)), meanwhile="evaluates"), Finish(), Step())
    scenario = Scenario(2, (Parameter((2,)), Parameter((1,))), window)
    assert {line.rpartition(": ")[2] for line in lines(sim, "lockstep.impls.naive:NaiveAccumulation", scenario)} == {
        "right"
    }


@pytest.mark.parametrize("probe", ["linear", "quadratic"])
@pytest.mark.parametrize("loss", TAKEN)
def test_a_loss_of_gradients_comes_back_in_the_order_of_the_program(sim: World, probe: str, loss: str) -> None:
    """In the run and in its script, where buckets that are filled in the order of hooks show it."""
    batch = Backward(((0, 1), (1, 0)), loss=loss)
    scenario = Scenario(2, (Parameter((2,)), Parameter((2,))), (batch, Finish()), probe=probe)
    observations = trial_of("lockstep.impls.naive:NaiveAccumulation", sim).run(scenario).observations
    assert [seen["hooks"] for seen in observations] == [[[0, 1]], [[1, 0]]]
    fault, correct = "lockstep.impls.hook_order_buckets:HookOrderBuckets", "lockstep.impls.naive:NaiveAccumulation"
    assert any("WRONG" in line for line in lines(sim, fault, scenario))
    assert {line.rpartition(": ")[2] for line in lines(sim, correct, scenario)} == {"right"}


def test_a_script_has_what_one_rank_does_alone(sim: World) -> None:
    scenario = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (0, 1))), Finish(), Step()))
    fault, correct = "lockstep.impls.faults.alone:TurnsRoundEveryOtherForward", "lockstep.impls.naive:NaiveAccumulation"
    first = replace(scenario, program=(ActAlone(1), *scenario.program))
    both = replace(scenario, program=(ActAlone(1), *scenario.program[:2], ActAlone(1), Step()))
    for name, program in ((fault, scenario), (correct, both)):
        assert {line.rpartition(": ")[2] for line in lines(sim, name, program)} == {"right"}
    read = [line for line in lines(sim, correct, both) if "the value read" in line]
    assert len(read) == 4
    assert all(line.startswith("rank 1") for line in read)
    assert any("WRONG" in line for line in lines(sim, fault, first))


def test_an_optimizer_is_made_before_each_wrapping_where_the_run_has_made_it_there(sim: World) -> None:
    window = (Backward(((0,), (0,))), Finish(), Step())
    scenario = Scenario(2, (Parameter((2,)),), (*window, SaveAndLoad(), *window))
    (implementation,) = look_up(["lockstep.impls.naive:NaiveAccumulation"], sim)
    scenario = replace(scenario, caller=Caller(makes_optimizer="before"))
    written = script(implementation, scenario, "A headline.", "script.py")
    made = [line.split(" =")[0] for line in written.splitlines() if line.startswith(("optimizer =", "wrapped ="))]
    assert made == ["optimizer", "wrapped"] * 2
    printed = lines(sim, implementation.name, scenario)
    assert {line.rpartition(": ")[2] for line in printed} == {"right"}


@pytest.mark.parametrize(
    ("fault", "how", "wrong"),
    [
        ("TakesWhatComes", Caller(hooked=2), "the gradient of"),
        ("MakesWhatWasHookedAnew", Caller(hooked=2, hooked_before=True), "the gradient of"),
        ("CallsItsForward", Caller(module_hooked=2), "the gradient of"),
        ("CallsTheForwardsOfUnits", Caller(module_hooked=2, hooked_before=True), "the gradient of b"),
        ("CallsTheForwardsOfUnits", Caller(module_hooked=2), "the gradient of b"),
        ("RemovesWhatComesBack", Caller(module_hooked=2), "the gradient of b"),
        ("GathersBehindTheCaller", Caller(module_hooked=2, hooked_before=True), "that a hook finds of"),
    ],
)
def test_a_script_has_the_callers_hooks(sim: World, fault: str, how: Caller, wrong: str) -> None:
    """Also where the loss is scaled, and in steps, which the hooks' gradients go into."""
    program = (Backward(((0, 1), (0, 1))), Finish(), Step())
    scenario = Scenario(2, (Parameter((2,)), Parameter(())), program, units=((1,),), loss_scale=LossScale(2.0))
    fault, correct = f"lockstep.impls.faults.hooked:{fault}", "lockstep.impls.naive:NaiveAccumulation"
    hooked = replace(scenario, caller=how)
    for name, each in ((fault, scenario), (correct, hooked), ("lockstep.impls.zero3:Zero3", hooked)):
        assert {line.rpartition(": ")[2] for line in lines(sim, name, each)} == {"right"}
    told = [line for line in lines(sim, fault, hooked) if wrong in line]
    assert told
    assert all("WRONG" in line for line in told)


@pytest.mark.parametrize("name", ["ReducesBehindTheAccumulation", "RunsNone", "RunsThemAgain"])
def test_a_script_has_hooks_that_keep_gradients(sim: World, name: str) -> None:
    window = (Backward(((0, 1), (0, 1)), synchronize=False), Backward(((0, 1), (0, 1))), Finish(), Step(), ZeroGrad())
    scenario = Scenario(2, (Parameter((2,)), Parameter(())), window)
    fault, correct = f"lockstep.impls.faults.final_in_hooks:{name}", "lockstep.impls.twins.reductions:FinalInItsHooks"
    keeping = replace(scenario, caller=Caller(keeps_gradients=True))
    for each, asked in ((fault, scenario), (correct, keeping)):
        assert {line.rpartition(": ")[2] for line in lines(sim, each, asked)} == {"right"}
    told = [line for line in lines(sim, fault, keeping) if "a hook finds" in line]
    assert len(told) == 4
    assert all("WRONG" in line for line in told)


@pytest.mark.parametrize("way", WAYS)
def test_a_script_has_a_model_that_differs(sim: World, way: str) -> None:
    scenario = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (0, 1))), Finish()))
    (implementation,) = look_up(["lockstep.impls.twins.starts:ComparesModels"], sim)
    for differs in (None, Differing(1, way, 0 if way in OF_ALL else 1)):
        text = script(implementation, replace(scenario, differs=differs), "A headline.", "script.py")
        errors = [report.error.message if report.error else "" for report in sim.run(Job(LINES, text, 2))]
        assert ["ranks have models that differ" in error for error in errors] == [bool(differs)] * 2
        assert ("rank 1's model" in text) == bool(differs)


def test_a_script_says_so_where_a_model_that_differs_is_wrapped(sim: World) -> None:
    scenario = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (0, 1))), Finish()))
    scenario = replace(scenario, differs=Differing(0, "order"))
    printed = lines(sim, "lockstep.impls.faults.differing:ComparesShapes", scenario)
    assert sum("no error where models are wrapped: WRONG" in line for line in printed) == 2


def test_a_script_saves_and_loads_what_the_run_has_asked_for(sim: World) -> None:
    window = (Backward(((0,), (0,))), Finish(), Clip(1.0), Step())
    scenario = Scenario(2, (Parameter((2,)),), (*window, SaveAndLoad(), ZeroGrad(), *window), loss_scale=LossScale(2.0))
    fault, correct = "lockstep.impls.faults.standing:SavesWithoutItsPrefix", "lockstep.impls.naive:NaiveAccumulation"
    asked = replace(scenario, caller=Caller(asks_the_wrapper=True))
    for name, each in ((fault, scenario), (correct, asked)):
        assert {line.rpartition(": ")[2] for line in lines(sim, name, each)} == {"right"}
    assert any("WRONG" in line for line in lines(sim, fault, asked))


def test_an_optimizer_comes_before_the_first_forward_where_the_run_has_made_it_there(sim: World) -> None:
    scenario = Scenario(2, (Parameter((2,)),), (Backward(((0,), (0,))), Finish(), Step()))
    (implementation,) = look_up(["lockstep.impls.twins.starts:StartsAtTheFirstForward"], sim)
    early = replace(scenario, caller=Caller(makes_optimizer="after"))
    usual, first = (script(implementation, each, "A headline.", "script.py") for each in (scenario, early))
    made, forward = "optimizer = torch.optim", ".backward()"
    assert usual.index(forward) < usual.index(made)
    assert first.index(made) < first.index(forward)
    assert first.count(made) == 1
    printed = lines(sim, implementation.name, early)
    assert {line.rpartition(": ")[2] for line in printed} == {"right"}


@pytest.mark.parametrize("then", [(), (Clip(1.0),)], ids=["exact", "enclosed"])
def test_a_script_keeps_the_shape_of_a_parameter_without_elements(sim: World, then: tuple[Clip, ...]) -> None:
    both = Scenario(2, (Parameter((0, 3)), Parameter((1,))), (Backward(((0, 1), (0, 1))), Finish(), *then))
    printed = lines(sim, "lockstep.impls.frameworks.torch_ddp:TorchDDP", both)
    assert len([line for line in printed if line.endswith(": right")]) == len(printed) > 0


def test_scripts_with_replaced_parameters_print_that_everything_is_right(sim: World) -> None:
    """On one rank, where the module alone is right: nothing that ships claims to survive it."""
    several = ("replace", "several steps")
    claims = Claims(accumulation=False, replaced_parameters=True, sixteen_bits=True, tied_parameters=True, most_ranks=1)

    @settings(max_examples=20, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of([exact_scenarios(claims, has=has) for has in (several, ("several optimizers", *several))]))
    def check(scenario: Scenario) -> None:
        printed = lines(sim, "lockstep.properties.tests.user_code:bare", scenario)
        assert [line for line in printed if not line.endswith(": right")] == []

    check()


def test_scripts_of_evaluations_print_that_everything_is_right(sim: World) -> None:
    """With buffers, which a forward of the script's model changes."""
    name = "lockstep.impls.static_buckets:StaticBuckets"
    (implementation,) = look_up([name], sim)

    @settings(max_examples=6, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(exact_scenarios(implementation.claims, has=("evaluate", "buffers")))
    def check(scenario: Scenario) -> None:
        printed = lines(sim, name, scenario)
        assert [line for line in printed if not line.endswith(": right")] == []

    check()


def test_a_script_shows_what_is_wrong(sim: World) -> None:
    wrong = [
        line for line in lines(sim, "lockstep.impls.hook_order_buckets:HookOrderBuckets", HOOK_ORDER) if "WRONG" in line
    ]
    assert wrong == [
        f"rank {rank}: the gradient of {name} is [{seen}]: WRONG, must be [{mean}]"
        for rank, of in enumerate(((("a", 8.0, 4.0), ("b", 5.0, 9.0)), (("a", 5.0, 4.0), ("b", 8.0, 9.0))))
        for name, seen, mean in of
    ]


def test_a_script_of_what_the_oracle_does_not_know_shows_values_and_judges_none(sim: World) -> None:
    rounds = replace(HOOK_ORDER, hyperparameters=Hyperparameters(learning_rate=0.1), parameters=(HALF, HALF))
    rounds = replace(rounds, program=(*rounds.program, Step()))
    printed = lines(sim, "lockstep.impls.static_buckets:StaticBuckets", rounds)
    assert len(printed) == 4
    assert not any("right" in line or "WRONG" in line for line in printed)


def test_scripts_of_joins_print_that_everything_is_right(sim: World) -> None:
    (implementation,) = look_up(["lockstep.impls.joined:Joined"], sim)

    @settings(max_examples=6, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(exact_scenarios(implementation.claims, has=("joins",)))
    def check(scenario: Scenario) -> None:
        printed = lines(sim, implementation.name, scenario)
        assert [line for line in printed if not line.endswith(": right")] == []

    check()


def test_a_script_gives_ranks_the_samples_of_others(sim: World) -> None:
    """With what is raised, overflows and is left out on these."""
    orders = ((0, 1), (1,), (0,))
    program = (
        *(Raise("backward", 1), Backward(orders, False), Backward(orders, overflow=(2,)), Finish(), Step(), ZeroGrad()),
        *(Backward(orders), Finish(), Step()),
    )
    scenario = Scenario(3, (Parameter((2,)), Parameter((1,))), program, loss_scale=LossScale(2.0))
    name = "lockstep.impls.static_buckets:StaticBuckets"
    scenario = replace(scenario, roles=(2, 0, 1))
    printed = lines(sim, name, scenario)
    assert {line.rpartition(": ")[2] for line in printed} == {"right"}
    (implementation,) = look_up([name], sim)
    text = script(implementation, scenario, "A headline.", "script.py")
    assert "\nrole = [2, 0, 1][rank]" in text
    assert "coefficients[rank]" not in text


def test_a_script_saves_where_the_run_has_saved(sim: World) -> None:
    fault, correct = "lockstep.impls.faults.checkpoints:SavingTakesAStep", "lockstep.impls.zero1:Zero1"
    window = (Backward(((0,), (0,))), Finish(), Step(), ZeroGrad())
    scenario = Scenario(2, (Parameter((2,)),), window * 2, optimizer="Adam")
    for name, saves, right in ((fault, (), True), (fault, (2,), False), (correct, (0, 5), True)):
        (implementation,) = look_up([name], sim)
        text = script(implementation, scenario, "A headline.", "script.py", Conditions(Part(saves=saves)))
        outcome = sim.run(Job(LINES, text, 2))
        printed = [line for report in outcome if report.result is not None for line in report.result["lines"]]
        assert printed, outcome[0].error
        assert all(line.endswith(": right") for line in printed) == right
