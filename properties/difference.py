"""The first value that is not what it must be, and how it is said."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.state import Inside
from lockstep.properties.naming import GENERATORS, parameter_name


@dataclass(frozen=True)
class Difference:
    """The first element that is not what it must be. ``place``: of the event after which it was seen; -1: at the start.

    ``quantity``: "gradient", "parameter", "norm", "loss scale", "buffer", "input", "output", "metric", "read" (in
    evaluation), "kept" (by a hook), "random number", or what the optimizer's state is called.
    ``parameter``: which one, or which buffer, or generator. ``actual`` and ``expected`` are None where there is none;
    else a whole array (the expected one may be an interval), and ``element`` says where in it.
    """

    quantity: str
    place: int
    rank: int
    parameter: int
    element: tuple[int, ...]
    actual: Any
    expected: Any

    @property
    def at(self) -> str:
        """The place in the array, in brackets: "[0,2]"; empty if the array has only one element."""
        return f"[{','.join(map(str, self.element))}]" if self.element else ""

    @property
    def kinds(self) -> tuple[str, str] | None:
        """Dtypes and shapes of what is and of what must be, where these differ; None where they do not, or where one of
        the two is missing.
        """
        kinds = _kind(self.actual), _kind(self.expected)
        return None if None in kinds or kinds[0] == kinds[1] else kinds  # type: ignore[return-value]  # both are there


def in_words(difference: Difference, start: str = "construction") -> str:
    """A sentence: its place, the seen value and the right one. ``start``: the moment of the first look at ranks."""
    when = f"after {start}" if difference.place < 0 else f"after event {difference.place}"
    told = [shown(values, difference.element) for values in (difference.actual, difference.expected)]
    if difference.kinds:
        told = [f"{value} ({kind})" for value, kind in zip(told, difference.kinds, strict=True)]
    what = f"{_quantity(difference)}{difference.at}"
    return f"On rank {difference.rank}, {when}, {what} is {told[0]} where it must be {told[1]}."


def _kind(values: Any) -> str | None:
    """Dtype and shape."""
    if values is None:
        return None
    if isinstance(values, Inside):
        return f"{values.form} of shape {values.low.shape}"
    return f"{values.dtype} of shape {values.shape}"


def _quantity(difference: Difference) -> str:
    """The quantity that differs: a.grad, a, exp_avg of a, the norm of all gradients, ..."""
    match difference.quantity:
        case "parameter":
            return parameter_name(difference.parameter)
        case "gradient":
            return f"{parameter_name(difference.parameter)}.grad"
        case "norm":
            return "the norm of all gradients"
        case "loss scale":
            return "the loss scale"
        case "read":
            return f"what was read of {parameter_name(difference.parameter)}"
        case "kept":
            return f"what a hook has found of {parameter_name(difference.parameter)}.grad"
        case "metric":
            return "what the caller has added up over the ranks"
        case "random number":
            return f"the next random number of {GENERATORS[difference.parameter]}"
        case "buffer":
            return f"buffer{difference.parameter}"
        case state:
            return f"{state} of {parameter_name(difference.parameter)}"


def shown(values: Any, element: tuple[int, ...]) -> str:
    """One element for people, or the interval that it must be in; None where there is none."""
    if values is None:
        return "None"
    if isinstance(values, Inside):
        if not values.low.size:
            return f"a {values.form} array of shape {values.low.shape}"
        if values.low[element] == values.high[element]:
            return shown(values.low.astype(FORMATS[values.form].numpy), element)
        return f"in [{values.low[element]:.17g}, {values.high[element]:.17g}]"
    if np.ndim(values) != len(element) or (np.size(values) == 0):
        return f"a {values.dtype} array of shape {np.shape(values)}"
    return f"{float(values[element]):.17g}" if values.dtype == np.float64 else str(values[element])
