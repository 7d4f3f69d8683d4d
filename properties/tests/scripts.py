"""Scripts of counterexamples for the tests: of which programs, and what they print."""

from typing import Any

from lockstep.oracle.events import (
    Backward,
    Clip,
    EndJoin,
    Evaluate,
    Finish,
    Freeze,
    Join,
    Load,
    Raise,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    Unscale,
    Write,
    ZeroGrad,
)
from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.model import Buffer, Group, Hyperparameters, LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.conditions import Conditions
from lockstep.properties.implementations import look_up
from lockstep.properties.part import Part
from lockstep.properties.script.whole import script
from lockstep.worlds.contract import Job, World

HOOK_ORDER = Scenario(2, (Parameter((1,)),) * 2, (Backward(((0, 1), (1, 0))), Finish()))
LINES = "lockstep.properties.tests.run_scripts:run_script"


def lines(world: World, name: str, scenario: Scenario, looks: int = 0, **how: Any) -> list[str]:
    """What the script for an implementation prints, on all ranks."""
    (implementation,) = look_up([name], world)
    text = script(implementation, scenario, "A headline.", "script.py", Conditions(Part(looks=looks), **how))
    outcome = world.run(Job(LINES, text, scenario.outsiders + scenario.world_size))
    assert [report.error for report in outcome] == [None] * len(outcome)
    return [line for report in outcome if report.result is not None for line in report.result["lines"]]


EVERYTHING = Scenario(
    2,
    (Parameter((2,)), Parameter((2, 3), layout="transposed"), Parameter((1,), "bfloat16"), Parameter((2,), tied=0)),
    (
        Raise("hook", 1, nested=True),
        Backward(((0, 1, 2, 3), (3, 2, 0, 1)), False, nested=True, forwards=2, together=True),
        Backward(((0, 1, 2, 3), (3, 2, 0, 1)), False, forwards=2, backwards=2),
        Backward(((0, 1, 2, 3), (3, 2, 0, 1)), False, backwards=2),
        Backward(((0, 1, 2, 3), (3, 2, 0, 1)), forwards=2),
        Finish(),
        Unscale(),
        Clip(1.0),
        Step(),
        Evaluate(),
        ZeroGrad(False),
        Raise("forward"),
        Backward(((1, 0, 2), (1, 2)), overflow=(1,)),
        Finish(),
        Unscale(),
        Clip(1.0),
        Step(),
        SetHyperparameters(Hyperparameters(learning_rate=0.25), 1),
        SaveAndLoad(),
        Freeze((1,)),
        Save(),
        Raise("forward"),
        Backward(((0, 2), (3, 2))),
        Finish(),
        Step(),
        SetHyperparameters(Hyperparameters(momentum=0.25)),
        Load(),
        Backward(((0, 2), (3, 2))),
        Finish(),
        Step(),
        Evaluate(True, switch=False, synchronize=False),
        Load(False),
        Backward(((0, 2), (3, 2))),
        Finish(),
        Step(),
    ),
    groups=(Group((1,), Hyperparameters(weight_decay=0.5)),),
    hyperparameters=Hyperparameters(momentum=0.5),
    masters=True,
    loss_scale=LossScale(8.0, 1),
    buffers=(Buffer((2,)),),
    units=((1, 2),),
    outside=(2,),
    sparse=(0, 2),
)


_BATCH = (Backward(((0, 1, 2), (2, 1, 0))), Finish())
APART = Scenario(
    2,
    (Parameter((2,)), Parameter((3,)), Parameter((1,))),
    (
        *(*_BATCH, Step((2,)), Write((0, 2)), ZeroGrad()),
        *(SetHyperparameters(Hyperparameters(learning_rate=0.25)), Save(), *_BATCH, Step((1, 0)), Load(), *_BATCH),
        *(SetHyperparameters(Hyperparameters(momentum=0.25), 1), SetHyperparameters(Hyperparameters(0.5), 0), Step()),
        *(SaveAndLoad(), *_BATCH, Step((0,)), Step((2, 1))),
    ),
    groups=(Group((1,)), Group((2,), Hyperparameters(weight_decay=0.5))),
    hyperparameters=Hyperparameters(momentum=0.5),
)


# Of the two groups one is empty, so that there is one optimizer.
_ALONE = (Backward(((0,), (0,))), Finish(), Step((1,)))
ONE_OF_ONE = Scenario(
    2,
    (Parameter((2,)),),
    (Save(), SetHyperparameters(Hyperparameters(learning_rate=1.0)), *_ALONE, Load(False), *_ALONE),
    groups=(Group((0,), Hyperparameters(learning_rate=0.25)),),
)


_GONE = (Backward(((0,), (), (0,)), False, gone=(1,)), Backward(((0,), (), ()), gone=(1, 2)), Finish(), Step())
RUNS_OUT = Scenario(
    3,
    (Parameter((2,)),),
    (Join(DIVISORS[1]), Backward(((0,),) * 3), Finish(), Step(), ZeroGrad(), *_GONE, EndJoin()),
)
