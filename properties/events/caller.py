"""The hyper-parameters of the caller in a training loop. They may change between steps."""

from dataclasses import dataclass

from lockstep.oracle.model import Group, Hyperparameters, LossScale


@dataclass(frozen=True)
class TrainingOptions:
    """The fields of a scenario that the caller chooses."""

    optimizer: str
    hyperparameters: Hyperparameters
    groups: tuple[Group, ...]
    masters: bool
    loss_scale: LossScale | None
    changes: tuple[Hyperparameters, ...]  # values that may be set between steps


def is_short(values: Hyperparameters) -> bool:
    """True if an SGD step with these values can be exact: all are multiples of 1/8."""
    numbers = (values.learning_rate, values.momentum, values.dampening, values.weight_decay)
    return all(number is None or (8 * number).is_integer() for number in numbers)


def choose(among: tuple[Hyperparameters, ...], form: int, short: bool) -> Hyperparameters:
    """One of the values. ``short``: only values with which a step can be exact."""
    ones = [values for values in among if is_short(values) or not short]
    return ones[form % len(ones)]
