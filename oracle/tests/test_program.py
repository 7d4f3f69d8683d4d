"""Scenarios are plain data that says what it means, and nothing malformed gets past their construction."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from lockstep.oracle.caller import Caller, Differing
from lockstep.oracle.events import (
    ActAlone,
    Backward,
    Clip,
    DropLoss,
    EndJoin,
    Finish,
    Freeze,
    Join,
    Load,
    Move,
    Replace,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    SwapWeights,
    Unscale,
    Write,
    ZeroGrad,
)
from lockstep.oracle.model import Buffer, Group, Hyperparameters, LossScale, Parameter
from lockstep.oracle.program import NAMES, Scenario
from lockstep.oracle.tests.drawn import scenarios

ONE = Parameter((1,))
FROZEN = Parameter((1,), trainable=False)
BATCH = (Backward(((0,), (0,))), Finish())
LOCAL = Backward(((0,), (0,)), False)
GONE = Backward(((0,), ()), gone=(1,))
JOINED = (Join(), GONE, Finish(), EndJoin(), *BATCH)

# What is wrong, its construction, and words that the error must have: the value, or the rule.
MALFORMED: dict[str, tuple[Callable[[], object], str]] = {
    "a dtype that is none": (lambda: Parameter((1,), "int32"), "'int32'"),
    "a negative size": (lambda: Parameter((2, -1)), r"\(2, -1\)"),
    "no ranks": (lambda: Scenario(0, (ONE,), ()), "not 0"),
    "a negative world": (lambda: Scenario(-2, (ONE,), ()), "not -2"),
    "an unknown probe": (lambda: Scenario(2, (ONE,), BATCH, probe="cubic"), "'cubic'"),
    "a cap below zero": (lambda: Scenario(2, (ONE,), BATCH, bucket_cap=-1), "not -1"),
    "Finish first": (lambda: Scenario(2, (ONE,), (Finish(),)), "Finish follows"),
    "Finish twice": (lambda: Scenario(2, (ONE,), (*BATCH, Finish())), "Finish follows"),
    "Finish after a local Backward": (lambda: Scenario(2, (ONE,), (LOCAL, Finish(), *BATCH)), "Finish follows"),
    "a Step of no group": (lambda: Step(()), r"not of \(\)"),
    "a Step of a group twice": (lambda: Step((1, 0, 1)), r"not of \(1, 0, 1\)"),
    "Step before Finish": (lambda: Scenario(2, (ONE,), (BATCH[0], Step(), Finish())), "Finish follows"),
    "two Backwards, one Finish": (lambda: Scenario(2, (ONE,), (BATCH[0], *BATCH)), "Finish follows"),
    "no Finish": (lambda: Scenario(2, (ONE,), (BATCH[0],)), "finished"),
    "a local Backward at the end": (lambda: Scenario(2, (ONE,), (*BATCH, LOCAL)), "synchronized"),
    "Step after a local Backward": (lambda: Scenario(2, (ONE,), (LOCAL, Step(), *BATCH)), r"Step\(\) follows"),
    "Step after a local Backward that was zeroed": (
        lambda: Scenario(2, (ONE,), (LOCAL, ZeroGrad(False), Step(), *BATCH)),
        r"Step\(\) follows",
    ),
    "zeros of a local Backward at the end": (
        lambda: Scenario(2, (ONE,), (*BATCH, LOCAL, ZeroGrad(False))),
        "synchronized",
    ),
    "ZeroGrad after a local Backward, with buffers that are broadcast": (
        lambda: Scenario(2, (ONE,), (LOCAL, ZeroGrad(), *BATCH), buffers=(Buffer((1,)),), broadcast_buffers=True),
        r"ZeroGrad\(\) leaves open",
    ),
    "ranks fewer than none that take no part": (lambda: Scenario(2, (ONE,), BATCH, outsiders=-1), "not -1"),
    "replicas of a part of the world": (
        lambda: Scenario(2, (ONE,), BATCH, replicas=2, outsiders=1),
        "2 replicas .* 1 outsiders",
    ),
    "a sample too few": (lambda: Scenario(2, (ONE,), (Backward(((0,),)), Finish())), "1 samples .* 2 ranks"),
    "samples that do not share out": (lambda: Scenario(2, (ONE,), (Backward(((0,),) * 3), Finish())), "3 samples"),
    "no samples at all": (lambda: Scenario(2, (ONE,), (Backward(()), Finish())), "0 samples"),
    "other samples later": (lambda: Scenario(2, (ONE,), (*BATCH, Backward(((0,),) * 4), Finish())), "orders 4 .* 2"),
    "a frozen parameter": (lambda: Scenario(2, (ONE, FROZEN), (Backward(((0,), (0, 1))), Finish())), r"\(0, 1\)"),
    "a parameter that is not there": (lambda: Scenario(2, (ONE,), (Backward(((0,), (1,))), Finish())), r"\(1,\)"),
    "a negative parameter": (lambda: Scenario(2, (ONE,), (Backward(((0,), (-1,))), Finish())), r"\(-1,\)"),
    "a parameter twice": (lambda: Scenario(2, (ONE,), (Backward(((0, 0), (0,))), Finish())), r"\(0, 0\)"),
    "ranks that use nothing": (
        lambda: Scenario(2, (ONE,), (Backward(((), ())), Finish())),
        "no rank uses a parameter in micro-batch 0",
    ),
    "a backward without a forward": (lambda: Backward(((0,),), forwards=0), "at least one forward, not 0"),
    "forwards without a backward": (lambda: Backward(((0,),), backwards=0), "at least one backward, not 0"),
    "more backwards than forwards": (
        lambda: Backward(((0,),), forwards=2, backwards=3),
        "2 forwards have one backward together or one each, not 3",
    ),
    "a learning rate of 0.3": (lambda: Scenario(2, (ONE,), BATCH, learning_rate=0.3), "0.3"),
    "a learning rate above 1": (lambda: Scenario(2, (ONE,), BATCH, learning_rate=2.0), "2.0"),
    "a learning rate of 0": (lambda: Scenario(2, (ONE,), BATCH, learning_rate=0.0), "0.0"),
    "a negative learning rate": (lambda: Scenario(2, (ONE,), BATCH, learning_rate=-0.5), "-0.5"),
    "no whole number of doublings": (lambda: Caller(hooked=True), "hooked is how often a hook doubles.*not True"),
    "another model nowhere": (lambda: Caller(beside="above"), "beside is one of before, after, or '', not 'above'"),
    "two other models": (lambda: Caller(beside="after", joint="after"), "not both"),
    "hooks before wrapping that there are not": (lambda: Caller(hooked_before=True), "and there are none"),
    "a difference that there is not": (lambda: Differing(0, "colour"), "not 'colour'"),
    "a difference in no parameter": (lambda: Differing(0, "order", 1), "and not in that of parameter 1"),
    "only a micro-batch that is not there": (lambda: Scenario(2, (ONE,), BATCH, only=(1, 0, 0, 0)), r"\(1, 0, 0, 0\)"),
    "only a sample that is not there": (lambda: Scenario(2, (ONE,), BATCH, only=(0, 2, 0, 0)), r"\(0, 2, 0, 0\)"),
    "only a parameter that is not there": (lambda: Scenario(2, (ONE,), BATCH, only=(0, 0, 1, 0)), r"\(0, 0, 1, 0\)"),
    "only an element that is not there": (lambda: Scenario(2, (ONE,), BATCH, only=(0, 0, 0, 1)), r"\(0, 0, 0, 1\)"),
}


@pytest.mark.parametrize("wrong", MALFORMED)
def test_what_is_malformed_is_refused_in_one_line_that_shows_it(wrong: str) -> None:
    construct, words = MALFORMED[wrong]
    with pytest.raises(ValueError, match=words) as refused:
        construct()
    assert "\n" not in str(refused.value)


@given(scenarios())
@settings(deadline=None)
def test_the_repr_evaluates_back(scenario: Scenario) -> None:
    assert eval(repr(scenario), dict(NAMES)) == scenario


@given(scenarios())
@settings(deadline=None)
def test_json_comes_back_as_the_same_scenario(scenario: Scenario) -> None:
    back = Scenario.from_json(scenario.to_json())
    assert back == scenario
    assert hash(back) == hash(scenario)  # tuples all the way down, no list left
    assert Scenario.from_json(json.dumps(json.loads(scenario.to_json()), indent=1)) == scenario


def test_the_repr_leaves_out_what_has_its_default() -> None:
    smallest = Scenario(2, (ONE,), BATCH)
    assert repr(smallest) == "Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))"
    frozen = replace(smallest, parameters=(ONE, Parameter((), "float64", False)), bucket_cap=4)
    assert "(Parameter((1,)), Parameter((), dtype='float64', trainable=False))" in repr(frozen)
    assert repr(frozen).endswith("Finish()), bucket_cap=4)")


@pytest.mark.parametrize(("shape", "count"), [((), 1), ((0,), 0), ((3,), 3), ((2, 3), 6), ((4, 0, 2), 0)])
def test_a_parameter_has_as_many_elements_as_its_sizes_multiply_to(shape: tuple[int, ...], count: int) -> None:
    assert Parameter(shape).count == count


def test_backward_reaches_parameters_in_the_order_of_first_use_among_a_ranks_samples() -> None:
    first, second = Backward(((2, 0), (1, 2), (3,), ()), False), Backward(((), (1,), (0,), (1, 0)))
    scenario = Scenario(2, (ONE,) * 4, (first, second, Finish()))
    assert scenario.samples == 4
    assert scenario.microbatches == (first, second)
    assert [scenario.order(0, rank) for rank in (0, 1)] == [(2, 0, 1), (3,)]
    assert [scenario.order(1, rank) for rank in (0, 1)] == [(1,), (0, 1)]


def test_a_program_without_backward_has_as_many_samples_as_ranks() -> None:
    assert Scenario(3, (ONE,), (Step(), ZeroGrad())).samples == 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hyperparameters": Hyperparameters(nesterov=True)}, "nesterov needs a momentum above 0"),
        ({"hyperparameters": Hyperparameters(momentum=-0.5)}, "momentum"),
        ({"hyperparameters": Hyperparameters(betas=(0.5, 0.5))}, "betas (0.5, 0.5) is no option of SGD"),
        ({"optimizer": "Adam", "hyperparameters": Hyperparameters(momentum=0.5)}, "momentum 0.5 is no option of Adam"),
        ({"optimizer": "Adam", "hyperparameters": Hyperparameters(betas=(0.5, 1.0))}, "beta 1.0"),
        ({"groups": (Group((0,), Hyperparameters(nesterov=True, dampening=0.5, momentum=0.5)),)}, "no dampening"),
        ({"program": (SetHyperparameters(Hyperparameters(nesterov=True)), *BATCH)}, "nesterov needs a momentum"),
        ({"only": (0, 0, 0, 0), "probe": "quadratic"}, "only (0, 0, 0, 0) takes the linear probe"),
        ({"program": (Join(), *BATCH)}, "ends before EndJoin"),
        ({"program": (*BATCH, EndJoin())}, "EndJoin ends one"),
        ({"program": (Join(), Join(), *BATCH, EndJoin())}, "a Join is not inside another"),
        ({"program": (Join(), SaveAndLoad(), *BATCH, EndJoin())}, "SaveAndLoad() comes before EndJoin"),
        ({"program": (Join(), Save(), *BATCH, EndJoin())}, "Save() comes before EndJoin"),
        ({"program": (*BATCH, Load())}, "Load() finds nothing: no Save has come since all was built"),
        ({"program": (Save(), SaveAndLoad(), *BATCH, Load(False))}, "Load(optimizer=False) finds nothing"),
        ({"program": (LOCAL, Save(), *BATCH)}, "Save() follows a Backward that did not synchronize"),
        ({"program": (GONE, Finish())}, "ranks (1,) of 2 cannot be gone after no Join"),
        (
            {"program": (Join(), GONE, Finish(), *BATCH, EndJoin())},
            "ranks () of 2 cannot be gone after [1] gone before",
        ),
        ({"program": (Join(), Backward(((), ()), gone=(0, 1)), Finish(), EndJoin())}, "ranks (0, 1) of 2"),
        ({"program": (Join(), replace(GONE, gone=(0,)), Finish(), EndJoin())}, "a micro-batch for a rank that is gone"),
        ({"program": (Join(), *BATCH, EndJoin()), "optimizer": "Adam"}, "Join takes SGD without momentum"),
        ({"loss_scale": LossScale(3.0)}, "3.0"),
        ({"outside": (0,)}, "outside (0,) does not name parameters of units"),
        ({"units": ((0,),), "outside": (0, 0)}, "outside (0, 0) does not name parameters of units once each"),
        ({"loss_scale": LossScale(2.0, 1.5)}, "1.5"),  # type: ignore[arg-type]
        ({"hyperparameters": Hyperparameters(learning_rate=float("inf"))}, "learning_rate inf is not finite"),
        ({"optimizer": "Adam", "hyperparameters": Hyperparameters(betas=(0.5,))}, "(0.5,)"),  # type: ignore[arg-type]
        ({"sparse": (0.5, 1)}, "(0.5, 1)"),
        ({"sparse": (2, 2)}, "(2, 2)"),
        ({"signs": "both"}, "signs is one of positive, mixed, negative, cancelling, not 'both'"),
        ({"mode": "test"}, "the mode is one of train, eval, not 'test'"),
        ({"world_size": 2.0}, "2.0"),
        ({"world_size": True}, "True"),
        ({"parameters": (), "program": ()}, "at least one parameter"),
        ({"program": (*BATCH, Unscale())}, "Unscale takes a loss scale"),
        ({"program": (*BATCH, Unscale(), Unscale()), "loss_scale": LossScale(2.0)}, "comes once before a Step"),
        ({"program": (Step(), *BATCH), "loss_scale": LossScale(2.0)}, "Step takes gradients, to see whether they"),
        (
            {"parameters": (ONE, Parameter((0,))), "program": (*BATCH, Clip(1.0, float("inf")))},
            "a parameter without elements has no largest one",
        ),
        (
            {"program": (SetHyperparameters(Hyperparameters(learning_rate=0.25), 1), *BATCH)},
            "there is no group 1: the last is 0",
        ),
        ({"groups": (Group((0,), Hyperparameters()),) * 2}, "parameter 0 is in a group 2 times"),
        (
            {"program": (*BATCH, Step((1,)))},
            "Step(groups=(1,)) takes groups with parameters, and no loss scale: groups [0]",
        ),
        ({"program": (*BATCH, Step((0,))), "groups": (Group((0,)),)}, "groups [1] have some"),
        ({"program": (*BATCH, Step((0,))), "loss_scale": LossScale(2.0)}, "LossScale(2.0)"),
        (
            {"parameters": (ONE, replace(ONE, tied=0)), "groups": (Group((1,), Hyperparameters()),)},
            "a group names parameter 1, which is no tensor of the model",
        ),
        ({"parameters": (ONE, Parameter((2,), tied=0))}, "is tied to one that differs"),
        ({"roles": (0, 0)}, "roles names each of 0 .. 1 once, or none: (0, 0)"),
        ({"roles": (0,)}, "roles names each of 0 .. 1 once, or none: (0,)"),
        ({"registered": (1,)}, "registered names each of 0 .. 0 once, or none: (1,)"),
        ({"caller": Caller(asks_the_wrapper=True), "masters": True}, "has one group of parameters, and no masters"),
        ({"caller": Caller(asks_the_wrapper=True), "groups": (Group((0,)),)}, "has one group of parameters"),
        ({"caller": Caller(makes_optimizer="after"), "masters": True}, "not right after wrapping"),
        ({"caller": Caller(beside="after"), "signs": "mixed"}, "of signs that are mixed there is none"),
        ({"differs": Differing(2, "number")}, "Differing(2, 'number') names a rank or parameter that there is not"),
        ({"differs": Differing(0, "size", 1)}, "names a rank or parameter that there is not"),
        ({"differs": Differing(0, "order")}, "takes several ranks and no units, and an order two parameters"),
        (
            {"caller": Caller(seeded=True), "program": JOINED},
            "and roles () take ranks that all stay",
        ),
        ({"roles": (1, 0), "program": JOINED}, "roles (1, 0) take ranks that all stay"),
        ({"caller": Caller(hooked=1), "program": (Replace((0,)), *BATCH)}, "Caller(hooked=1) has no hooks on what is"),
        (
            {
                "caller": Caller(keeps_gradients=True),
                "parameters": (ONE, replace(ONE, trainable=False)),
                "program": (Freeze((1,), False), *BATCH),
            },
            "Caller(keeps_gradients=True) has no hooks on what is trained",
        ),
        ({"program": (*BATCH, Freeze((0,)))}, "drop them first"),
        ({"program": (*BATCH, Freeze((0,)), ZeroGrad(False))}, "drop them first"),
        ({"program": (*BATCH, Freeze((0,)), Step(), ZeroGrad())}, "drop them first"),
        ({"program": (*BATCH, Replace((0,)))}, "drop them first"),
        ({"program": (Write((0,)), *BATCH), "masters": True}, "Write((0,)) comes where there are masters"),
        ({"program": (Write((1,)), *BATCH)}, "Write((1,)) names what is no tensor of the model"),
        ({"program": (ActAlone(2), *BATCH)}, "ActAlone(2) takes one of the 2 ranks"),
        ({"program": (LOCAL, Move(), *BATCH)}, "Move() follows a Backward that did not synchronize"),
        ({"program": (LOCAL, SwapWeights(), *BATCH)}, "SwapWeights() follows a Backward that did not synchronize"),
        ({"program": (*BATCH, ZeroGrad(), Freeze((0,)), DropLoss())}, "DropLoss() has no loss, as no parameter"),
        *(
            ({"program": (event, *BATCH), "buffers": (Buffer((1,)),), "broadcast_buffers": True}, f"{event!r} leaves")
            for event in (DropLoss(), SwapWeights(), ActAlone(0))
        ),
        ({"program": (LOCAL, Write((0,)), *BATCH)}, "Write((0,)) follows a Backward that did not synchronize"),
        (
            {
                "program": (LOCAL, replace(BATCH[0], forwards=2), Finish()),
                "buffers": (Buffer((1,)),),
                "broadcast_buffers": True,
            },
            "forwards=2) leaves open before which forward buffers are broadcast",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_the_value(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as refusal:
        replace(Scenario(2, (ONE,), BATCH), **changes)
    assert "\n" not in str(refusal.value)


def test_options_that_come_together_in_the_course_of_a_program_are_taken() -> None:
    momentum, nesterov = Hyperparameters(momentum=0.5), Hyperparameters(nesterov=True)
    program = (SetHyperparameters(momentum), SetHyperparameters(nesterov), *BATCH)
    assert Scenario(2, (ONE,), program).program == program
    with pytest.raises(ValueError, match="nesterov"):  # weights alone: the optimizer begins afresh, without momentum
        Scenario(2, (ONE,), (SetHyperparameters(momentum), SaveAndLoad(False), SetHyperparameters(nesterov), *BATCH))
    with pytest.raises(ValueError, match="nesterov"):  # back to where there was none
        Scenario(2, (ONE,), (Save(), SetHyperparameters(momentum), Load(), SetHyperparameters(nesterov), *BATCH))


@pytest.mark.parametrize(
    "changes",
    [
        {"outsiders": 1},
        {"replicas": 2},
        {"program": (*BATCH, ZeroGrad(), *BATCH), "buffers": (Buffer((1,)),), "broadcast_buffers": True},
        {"program": (*BATCH, Clip(1.0, float("inf")))},
        {"parameters": (ONE, Parameter((0,))), "program": (*BATCH, Clip(1.0))},
        {"program": (Step(), *BATCH)},
        {"caller": Caller(seeded=True), "roles": (1, 0), "differs": Differing(1, "number")},
        {"caller": Caller(makes_optimizer="before"), "program": JOINED},
        {"caller": Caller(hooked=1, hooked_before=True), "parameters": (ONE, ONE), "program": (Freeze((1,)), *BATCH)},
        {"parameters": (ONE, ONE), "differs": Differing(0, "order"), "registered": (1, 0)},
    ],
)
def test_what_is_refused_with_something_else_alone_is_taken(changes: dict[str, Any]) -> None:
    changed = replace(Scenario(2, (ONE,), BATCH), **changes)
    assert {name: getattr(changed, name) for name in changes} == changes


def test_an_infinite_norm_comes_back_from_its_repr() -> None:
    scenario = Scenario(2, (ONE,), (*BATCH, Clip(1.0, float("inf"))))
    assert eval(repr(scenario), dict(NAMES)) == scenario


@pytest.mark.parametrize("text", ["{}", "[]", '{"world_size": 2, "parameters": [], "program": [{"event": "Foo"}]}'])
def test_json_that_is_no_scenario_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"a scenario has|an event is one of .* not 'Foo'") as refusal:
        Scenario.from_json(text)
    assert "\n" not in str(refusal.value)
