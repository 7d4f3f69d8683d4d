"""The hyper-parameters of each group of parameters: its own, else the scenario's, else torch's defaults.

By group, as in `oracle.setup.Setup.all_groups`. Weight decay is 0 unless something says otherwise.
"""

from typing import Any

from lockstep.oracle.model import Hyperparameters
from lockstep.oracle.optimizers import SGD, Adam
from lockstep.oracle.setup import Setup

Settings = tuple[SGD | Adam, ...]


def at_the_start(setup: Setup) -> Settings:
    """ValueError for a combination that no optimizer takes."""
    base = setup.hyperparameters
    rate = setup.learning_rate if base.learning_rate is None else base.learning_rate
    first = SGD(rate) if setup.optimizer == "SGD" else Adam(rate, decoupled=setup.optimizer == "AdamW")
    return tuple(_changed(first, base, group.hyperparameters) for group in setup.all_groups)


def changed(settings: Settings, values: Hyperparameters, group: int | None) -> Settings:
    """These settings with new values for one group, or, where it is None, for all. ValueError as `at_the_start`."""
    return tuple(
        _changed(before, values) if group in (None, number) else before for number, before in enumerate(settings)
    )


def any_momentum(settings: Settings) -> bool:
    """True if any group has momentum."""
    return any(getattr(each, "momentum", 0) for each in settings)


def options(values: SGD | Adam) -> dict[str, Any]:
    """The options as torch's optimizers take them. Adam and AdamW differ in their class alone."""
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
