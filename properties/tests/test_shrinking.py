"""What scenarios shrink to: what a person would have written by hand."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, find, settings

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import (
    ActAlone,
    Backward,
    Clip,
    CopyGradients,
    DropLoss,
    Duplicate,
    EndJoin,
    Evaluate,
    Finish,
    Freeze,
    Join,
    Load,
    Move,
    Raise,
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
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.independent import INDEPENDENT
from lockstep.properties.strategies.several import after_two_forwards, with_several_backwards
from lockstep.properties.strategies.traits import buckets, cap_beyond_a_parameter, is_ragged
from lockstep.properties.tests.of_scenarios import (
    ALL,
    PLAIN,
    in_order,
    sets_after_a_step,
    skips_a_step_in_the_middle,
    tied_across_units,
    used_only_earlier,
)

Holds = Callable[[Scenario], bool]

ONE, HALF = Parameter((1,)), Parameter((1,), "bfloat16")
TWO = (ONE, ONE)
THREE = (ONE, ONE, ONE)
SYNCHRONIZED = (Backward(((0,), (0,))), Finish())
BOTH = (Backward(((0, 1), (0, 1))), Finish())
WINDOW = (Join(), Backward(((0,), ()), gone=(1,)), Finish(), EndJoin())
STEPPED_BY_RANK_ZERO = (*WINDOW[:-1], Step(), EndJoin())
STEPPED_BY_RANK_ONE = (Join(), Backward(((), (0,)), gone=(0,)), Finish(), Step(), EndJoin())
SKIPPED = (Backward(((0,), (0,)), overflow=(0,)), Finish(), Unscale(), Clip(1.0), Step(), ZeroGrad())
SMALLEST = Scenario(2, (ONE,), SYNCHRONIZED)


# As the laws draw: with Hypothesis' own backend a seed means something else after each import.
SHRINKING = settings(
    max_examples=1000,
    backend=INDEPENDENT,
    database=None,
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def minimal(
    holds: Holds,
    claims: Claims = ALL,
    hook_orders: str = "any",
    has: tuple[str, ...] = (),
    random: Random | None = None,
) -> Scenario:
    """What such a scenario shrinks to."""
    return find(exact_scenarios(claims, hook_orders, has), holds, settings=SHRINKING, random=random)


@pytest.mark.parametrize(
    ("claims", "hook_orders"), [(ALL, "any"), (PLAIN, "same on all ranks")], ids=["all", "plain, one order"]
)
def test_shrinks_to_the_smallest_scenario(claims: Claims, hook_orders: str) -> None:
    assert minimal(lambda s: True, claims, hook_orders) == SMALLEST


def test_what_has_any_features_shrinks_to_the_smallest_scenario_too() -> None:
    assert find(with_any(ALL), lambda s: True, settings=SHRINKING) == SMALLEST
    assert find(with_any(ALL), FEATURES["cap"].occurs, settings=SHRINKING) == SMALLEST_WITH["cap"]


SMALLEST_WITH: dict[str, Scenario] = {
    "quadratic": Scenario(2, (ONE,), SYNCHRONIZED, probe="quadratic"),
    "raise, go on": Scenario(2, TWO, (Raise("forward"), *BOTH, Step(), *BOTH)),
    "raise, freeze": Scenario(2, THREE, (Raise("forward"), Freeze((2,)), *BOTH)),
    "accumulation": Scenario(2, (ONE,), (Backward(((0,), (0,)), False), *SYNCHRONIZED)),
    "nested": Scenario(2, (ONE,), (Backward(((0,), (0,)), False, nested=True), *SYNCHRONIZED)),
    "together": Scenario(
        2, (ONE,), (Backward(((0,), (0,)), False), Backward(((0,), (0,)), False, together=True), *SYNCHRONIZED)
    ),
    "drop window": Scenario(2, (ONE,), (Backward(((0,), (0,)), False), ZeroGrad(), *SYNCHRONIZED)),
    "unused": Scenario(2, TWO, (Backward(((0, 1), (1,))), Finish())),
    "idle rank": Scenario(2, (ONE,), (Backward(((0,), ())), Finish())),
    "step": Scenario(2, (ONE,), (*SYNCHRONIZED, Step())),
    "idle step": Scenario(2, (ONE,), (Step(), *SYNCHRONIZED)),
    "write": Scenario(2, (ONE,), (Write((0,)), *SYNCHRONIZED)),
    "write between steps": Scenario(2, (ONE,), (*SYNCHRONIZED, Step(), Write((0,)), *SYNCHRONIZED, Step())),
    "several optimizers": Scenario(2, TWO, (*BOTH, Step((1, 0))), groups=(Group((1,), Hyperparameters(0.25)),)),
    "several steps": Scenario(2, (ONE,), (*SYNCHRONIZED, Step(), *SYNCHRONIZED, Step())),
    "zero grad": Scenario(2, (ONE,), (*SYNCHRONIZED, ZeroGrad(), *SYNCHRONIZED)),
    "clip": Scenario(2, (ONE,), (*SYNCHRONIZED, Clip(1.0))),
    "clips twice": Scenario(2, (ONE,), (*SYNCHRONIZED, Clip(1.0), ZeroGrad(), *SYNCHRONIZED, Clip(1.0))),
    "loss scale": Scenario(2, (ONE,), SYNCHRONIZED, loss_scale=LossScale(2.0)),
    "overflow": Scenario(2, (ONE,), (Backward(((0,), (0,)), overflow=(0,)), Finish()), loss_scale=LossScale(2.0)),
    "clipped overflow": Scenario(
        2,
        (ONE,),
        SKIPPED,
        loss_scale=LossScale(2.0),
    ),
    "momentum": Scenario(2, (ONE,), (*SYNCHRONIZED, Step()), hyperparameters=Hyperparameters(momentum=0.5)),
    "adam": Scenario(2, (ONE,), (*SYNCHRONIZED, Step()), optimizer="Adam"),
    "groups": Scenario(2, (ONE,), (*SYNCHRONIZED, Step()), groups=(Group((0,), Hyperparameters(0.25)),)),
    "three groups": Scenario(
        2,
        THREE,
        (Backward(((0, 1, 2), (0, 1, 2))), Finish(), Step()),
        groups=(Group((1,), Hyperparameters(weight_decay=0.5)), Group((2,), Hyperparameters(0.0))),
    ),
    "set hyperparameters": Scenario(
        2, (ONE,), (SetHyperparameters(Hyperparameters(learning_rate=0.25)), *SYNCHRONIZED, Step())
    ),
    "masters": Scenario(2, (HALF,), (*SYNCHRONIZED, Step()), masters=True),
    "zeros": Scenario(2, (ONE,), SYNCHRONIZED, sparse=(0, 2)),
    "signs": Scenario(2, (ONE,), SYNCHRONIZED, signs="mixed"),
    "eval mode": Scenario(2, (ONE,), SYNCHRONIZED, mode="eval"),
    "16 bits": Scenario(2, (HALF,), SYNCHRONIZED),
    "freeze": Scenario(2, TWO, (Freeze((1,)), *SYNCHRONIZED)),
    "save and load": Scenario(2, (ONE,), (SaveAndLoad(), *SYNCHRONIZED)),
    "go on": Scenario(2, (ONE,), (*SYNCHRONIZED, Step(), SaveAndLoad(), *SYNCHRONIZED, Step())),
    "save, load": Scenario(2, (ONE,), (Save(), Load(), *SYNCHRONIZED)),
    "go back": Scenario(2, (ONE,), (Save(), *SYNCHRONIZED, Step(), Load(), *SYNCHRONIZED, Step())),
    "evaluate, go back": Scenario(2, (ONE,), (Save(), *SYNCHRONIZED, Step(), Evaluate(), Load(), *SYNCHRONIZED)),
    "evaluate": Scenario(2, (ONE,), (Evaluate(), *SYNCHRONIZED)),
    "infer": Scenario(2, (ONE,), (Evaluate(True), *SYNCHRONIZED)),
    "raise": Scenario(2, (ONE,), (Raise("forward"), *SYNCHRONIZED)),
    "buffers": Scenario(2, (ONE,), SYNCHRONIZED, buffers=(Buffer((1,)),)),
    "tied": Scenario(2, (ONE, Parameter((1,), tied=0)), BOTH),
    "empty": Scenario(2, (ONE, Parameter((0,))), BOTH),
    "layout": Scenario(2, (Parameter((2, 3), layout="transposed"),), SYNCHRONIZED),
    "units": Scenario(2, (ONE,), SYNCHRONIZED, units=((0,),)),
    "outside": Scenario(2, (ONE,), SYNCHRONIZED, units=((0,),), outside=(0,)),
    "replicas": Scenario(2, (ONE,), SYNCHRONIZED, replicas=2),
    "outsiders": Scenario(2, (ONE,), SYNCHRONIZED, outsiders=1),
    "joins": Scenario(2, (ONE,), WINDOW),
    "joins twice": Scenario(2, (ONE,), WINDOW * 2),
    "others stay": Scenario(2, (ONE,), (*STEPPED_BY_RANK_ZERO, *STEPPED_BY_RANK_ONE)),
    "step without rank 0": Scenario(2, (ONE,), STEPPED_BY_RANK_ONE),
    "replace": Scenario(2, (ONE,), (Replace((0,)), *SYNCHRONIZED)),
    "cap": Scenario(2, (ONE,), SYNCHRONIZED, bucket_cap=4),
    "early optimizer": Scenario(2, (ONE,), (*SYNCHRONIZED, Step()), caller=Caller(makes_optimizer="after")),
    "asked wrapper": Scenario(2, (ONE,), SYNCHRONIZED, caller=Caller(asks_the_wrapper=True)),
    "seeded": Scenario(2, (ONE,), SYNCHRONIZED, caller=Caller(seeded=True)),
    "hooks": Scenario(2, (ONE,), SYNCHRONIZED, caller=Caller(hooked=1)),
    "hooks on modules": Scenario(2, (ONE,), SYNCHRONIZED, caller=Caller(module_hooked=1)),
    "kept gradients": Scenario(2, (ONE,), SYNCHRONIZED, caller=Caller(keeps_gradients=True)),
    "registered": Scenario(2, TWO, BOTH, registered=(1, 0)),
    "direct": Scenario(2, (ONE,), (Backward(((0,), (0,)), direct=True), Finish())),
    "measure": Scenario(2, (ONE,), (Backward(((0,), (0,)), meanwhile="evaluates"), Finish())),
    "zero late": Scenario(2, (ONE,), (*SYNCHRONIZED, Backward(((0,), (0,)), meanwhile="drops gradients"), Finish())),
    "read parameters": Scenario(2, (ONE,), (Backward(((0,), (0,)), loss="outputs, then parameters"), Finish())),
    "take gradients": Scenario(2, (ONE,), (Backward(((0,), (0,)), loss="gradients"), Finish())),
    "metric": Scenario(2, (ONE,), (Backward(((0,), (0,)), metric=True), Finish())),
    "end inside": Scenario(2, (ONE,), (Backward(((0,), (0,)), False, ends=True), Backward(((0,), (0,))), Finish())),
    "move": Scenario(2, (ONE,), (Move(), *SYNCHRONIZED)),
    "move between steps": Scenario(2, (ONE,), (*SYNCHRONIZED, Step(), Move(), *SYNCHRONIZED, Step())),
    "copy gradients": Scenario(2, (ONE,), (Backward(((0,), (0,)), False), CopyGradients(), *SYNCHRONIZED)),
    "drop loss": Scenario(2, (ONE,), (DropLoss(), *SYNCHRONIZED)),
    "swap weights": Scenario(2, (ONE,), (SwapWeights(), *SYNCHRONIZED)),
    "swap between steps": Scenario(2, (ONE,), (*SYNCHRONIZED, Step(), SwapWeights(), *SYNCHRONIZED, Step())),
    "duplicate": Scenario(2, (ONE,), (Duplicate(), *SYNCHRONIZED)),
    "duplicate around a step": Scenario(2, (ONE,), (Duplicate(), *SYNCHRONIZED, Step(), Duplicate(), *SYNCHRONIZED)),
    "act alone": Scenario(2, (ONE,), (ActAlone(0), *SYNCHRONIZED)),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_shrinks_to_the_smallest_scenario_that_has_what_is_asked_for(feature: str) -> None:
    assert minimal(lambda s: True, has=(feature,)) == SMALLEST_WITH[feature]


def test_shrinks_to_the_smallest_scenario_in_which_a_backward_follows_two_forwards() -> None:
    smallest = Scenario(2, (ONE,), (Backward(((0,), (0,)), forwards=2), Finish()))
    assert find(after_two_forwards(ALL), lambda s: True, settings=SHRINKING) == smallest


def test_shrinks_to_the_smallest_scenario_with_several_backwards() -> None:
    smallest = Scenario(2, (ONE,), (Backward(((0,), (0,)), backwards=2), Finish()))
    assert (
        find(with_several_backwards(replace(ALL, backwards="anywhere")), lambda s: True, settings=SHRINKING) == smallest
    )
    local = (replace(smallest.microbatches[0], synchronize=False), Backward(((0,), (0,))), Finish())
    inside = replace(ALL, backwards="in no_sync")
    assert find(with_several_backwards(inside), lambda s: True, settings=SHRINKING) == replace(smallest, program=local)


SHRUNK: dict[str, tuple[Holds, Scenario]] = {
    "no_sync": (FEATURES["accumulation"].occurs, SMALLEST_WITH["accumulation"]),
    "different orders": (
        lambda s: any(len({o for o in b.orders if len(o) > 1}) > 1 for b in s.microbatches),
        Scenario(2, TWO, (Backward(((0, 1), (1, 0))), Finish())),
    ),
    "a window dropped": (FEATURES["drop window"].occurs, SMALLEST_WITH["drop window"]),
    "a cap": (FEATURES["cap"].occurs, SMALLEST_WITH["cap"]),
    "a clip": (FEATURES["clip"].occurs, SMALLEST_WITH["clip"]),
    "a tie": (FEATURES["tied"].occurs, SMALLEST_WITH["tied"]),
    "an error": (FEATURES["raise"].occurs, SMALLEST_WITH["raise"]),
    "saving": (FEATURES["save and load"].occurs, SMALLEST_WITH["save and load"]),
    "a freeze": (FEATURES["freeze"].occurs, SMALLEST_WITH["freeze"]),
    "a layout": (FEATURES["layout"].occurs, SMALLEST_WITH["layout"]),
    "a rank that takes no part": (FEATURES["outsiders"].occurs, SMALLEST_WITH["outsiders"]),
}


CAPPED = Claims(accumulation=False, reloads=False, bucket_cap=True, float64=False)
STEPPED = (*SYNCHRONIZED, Step())
ONE_AND_TWO = (ONE, Parameter((2,)))
RARE: dict[str, tuple[Holds, Claims, tuple[str, ...], Scenario]] = {
    "three buckets, the last ragged": (
        lambda s: len(buckets(s)) > 2 and is_ragged(s),
        CAPPED,
        ("cap",),
        Scenario(2, (*ONE_AND_TWO, Parameter((2,))), (Backward(((0, 1, 2), (0, 1, 2))), Finish()), bucket_cap=4),
    ),
    "a cap one element smaller than a parameter": (
        cap_beyond_a_parameter(-1),
        CAPPED,
        ("cap",),
        Scenario(2, (ONE,), SYNCHRONIZED, bucket_cap=0),
    ),
    "a cap one element larger than a parameter": (
        cap_beyond_a_parameter(1),
        CAPPED,
        ("cap",),
        Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()), bucket_cap=8),
    ),
    "a parameter used only earlier in the window": (
        used_only_earlier,
        ALL,
        ("accumulation", "unused"),
        Scenario(2, TWO, (Backward(((0, 1), (0, 1)), False), Backward(((1,), (1,))), Finish())),
    ),
    "a tie across two units": (
        tied_across_units,
        ALL,
        ("tied", "units"),
        Scenario(2, (ONE, Parameter((1,), tied=0)), BOTH, units=((0,), (1,))),
    ),
    "a step skipped between two that are not": (
        skips_a_step_in_the_middle,
        ALL,
        ("clipped overflow",),
        Scenario(
            2,
            (ONE,),
            (*STEPPED, *SKIPPED, *STEPPED),
            loss_scale=LossScale(2.0),
        ),
    ),
    "a step after an error": (
        in_order(Raise, Backward, Step),
        ALL,
        ("raise",),
        Scenario(2, (ONE,), (Raise("forward"), *STEPPED)),
    ),
    "betas set between two steps": (
        lambda s: sets_after_a_step(s, "betas"),
        ALL,
        ("adam", "set hyperparameters"),
        Scenario(
            2,
            (ONE,),
            (*STEPPED, SetHyperparameters(Hyperparameters(betas=(0.5, 0.75))), Step()),
            optimizer="Adam",
        ),
    ),
}


@pytest.mark.parametrize("what", RARE)
def test_shrinks_to_the_smallest_scenario_that_has_what_is_rare(what: str) -> None:
    """Found among those that have the features that it takes, in one of three searches: shrinking ends where no one
    step makes a scenario smaller, which from some beginnings is not the smallest.
    """
    holds, claims, features, smallest = RARE[what]
    found = (minimal(holds, claims, has=features, random=Random(seed)) for seed in range(3))
    assert any(each == smallest for each in found)


@pytest.mark.parametrize("what", SHRUNK)
def test_shrinks_to_the_smallest_scenario_that_still_has(what: str) -> None:
    """Found among everything that is drawn, with whatever else is in it."""
    holds, smallest = SHRUNK[what]
    assert minimal(holds) == smallest
