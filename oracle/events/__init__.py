"""The events of a program. Each module has one: its meaning, the places where it may come, its effect on ranks."""

from lockstep.oracle.event import Event
from lockstep.oracle.events.act_alone import ActAlone
from lockstep.oracle.events.backward import Backward
from lockstep.oracle.events.clip import Clip
from lockstep.oracle.events.copy_gradients import CopyGradients
from lockstep.oracle.events.drop_loss import DropLoss
from lockstep.oracle.events.duplicate import Duplicate
from lockstep.oracle.events.end_join import EndJoin
from lockstep.oracle.events.evaluate import Evaluate
from lockstep.oracle.events.finish import Finish
from lockstep.oracle.events.freeze import Freeze
from lockstep.oracle.events.join import Join
from lockstep.oracle.events.load import Load
from lockstep.oracle.events.move import Move
from lockstep.oracle.events.raise_error import Raise
from lockstep.oracle.events.replace import Replace
from lockstep.oracle.events.save import Save
from lockstep.oracle.events.save_and_load import SaveAndLoad
from lockstep.oracle.events.set_hyperparameters import SetHyperparameters
from lockstep.oracle.events.step import Step
from lockstep.oracle.events.swap_weights import SwapWeights
from lockstep.oracle.events.unscale import Unscale
from lockstep.oracle.events.write import Write
from lockstep.oracle.events.zero_grad import ZeroGrad

__all__ = [
    "EVENTS",
    "ActAlone",
    "Backward",
    "Clip",
    "CopyGradients",
    "DropLoss",
    "Duplicate",
    "EndJoin",
    "Evaluate",
    "Event",
    "Finish",
    "Freeze",
    "Join",
    "Load",
    "Move",
    "Raise",
    "Replace",
    "Save",
    "SaveAndLoad",
    "SetHyperparameters",
    "Step",
    "SwapWeights",
    "Unscale",
    "Write",
    "ZeroGrad",
]

# By name, in the order in which `lockstep` lists them.
EVENTS: dict[str, type[Event]] = {
    event.__name__: event
    for event in (
        Backward,
        Finish,
        Unscale,
        Clip,
        Step,
        ZeroGrad,
        SetHyperparameters,
        Freeze,
        Replace,
        Write,
        Move,
        CopyGradients,
        SaveAndLoad,
        Save,
        Load,
        Evaluate,
        SwapWeights,
        Duplicate,
        ActAlone,
        DropLoss,
        Join,
        EndJoin,
        Raise,
    )
}
