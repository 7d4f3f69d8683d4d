"""Which hyper-parameters each group of parameters has: its own, else the scenario's, else torch's defaults.

By group, as in `oracle.program.Scenario.all_groups`. Weight decay is 0 unless something says otherwise.
"""

from typing import TYPE_CHECKING, Any

from lockstep.oracle.events import Hyperparameters, Load, Save, SaveAndLoad, SetHyperparameters
from lockstep.oracle.optimizers import SGD, Adam

if TYPE_CHECKING:
    from lockstep.oracle.program import Scenario

Settings = list[SGD | Adam]


def at_the_start(scenario: "Scenario") -> Settings:
    """ValueError for a combination that no optimizer takes."""
    base = scenario.hyperparameters
    rate = scenario.learning_rate if base.learning_rate is None else base.learning_rate
    first = SGD(rate) if scenario.optimizer == "SGD" else Adam(rate, decoupled=scenario.optimizer == "AdamW")
    return [_changed(first, base, group.hyperparameters) for group in scenario.all_groups]


def after(settings: Settings, event: SetHyperparameters) -> Settings:
    """What the event makes of them. ValueError for a combination that no optimizer takes."""
    return [
        _changed(before, event.values) if event.group in (None, group) else before
        for group, before in enumerate(settings)
    ]


def at(scenario: "Scenario", place: int) -> Settings:
    """Those with which the event of that place begins."""
    settings = saved = at_the_start(scenario)
    for event in scenario.program[:place]:
        match event:
            case SetHyperparameters():
                settings = after(settings, event)
            case SaveAndLoad(optimizer=False) | Load(optimizer=False):
                settings = at_the_start(scenario)
            case Save():
                saved = settings
            case Load():
                settings = saved
    return settings


def options(values: SGD | Adam) -> dict[str, Any]:
    """As torch's optimizers take them; which of Adam and AdamW it is says their class."""
    return {name: value for name, value in vars(values).items() if name != "decoupled"}


def _changed(before: SGD | Adam, *layers: Hyperparameters) -> SGD | Adam:
    """The same but for what the layers give, the last of them first."""
    values = dict(vars(before))
    for layer in layers:
        given = {name: value for name, value in vars(layer).items() if value is not None}
        if "learning_rate" in given:
            given["lr"] = given.pop("learning_rate")
        values |= given
    return type(before)(**values)
