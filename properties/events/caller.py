"""The hyper-parameters that a caller brings to a training loop, and may change between steps."""

from dataclasses import dataclass

from lockstep.oracle.model import Group, Hyperparameters, LossScale


@dataclass(frozen=True)
class TrainingOptions:
    """The fields of a scenario that are the caller's."""

    optimizer: str
    hyperparameters: Hyperparameters
    groups: tuple[Group, ...]
    masters: bool
    loss_scale: LossScale | None
    changes: tuple[Hyperparameters, ...]  # which may be set between steps


def is_short(values: Hyperparameters) -> bool:
    """True if a step of SGD with these can be exact: all are multiples of 1/8."""
    numbers = (values.learning_rate, values.momentum, values.dampening, values.weight_decay)
    return all(number is None or (8 * number).is_integer() for number in numbers)


def choose(among: tuple[Hyperparameters, ...], form: int, short: bool) -> Hyperparameters:
    """One of them; ``short``: of those that leave a step exact."""
    ones = [values for values in among if is_short(values) or not short]
    return ones[form % len(ones)]
