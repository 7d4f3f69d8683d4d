"""The first wrong value, and its description in words."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.state import Inside
from lockstep.properties.naming import GENERATORS, parameter_name


@dataclass(frozen=True)
class Difference:
    """The first element that differs. ``place``: the event after which it was observed; -1: at the start.

    ``quantity``: "gradient", "parameter", "norm", "loss scale", "buffer", "input", "output", "metric", "read" (in
    evaluation), "kept" (by a hook), "random number", or the name of an optimizer state. ``parameter``: the number of
    the parameter, buffer or generator. ``actual`` and ``expected``: whole arrays, or None if there is none; the
    expected one may be an interval. ``element``: the index in these.
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
        """The dtypes and shapes of both values if these differ. None if they are equal, or if a value is missing."""
        kinds = _kind(self.actual), _kind(self.expected)
        return None if None in kinds or kinds[0] == kinds[1] else kinds  # type: ignore[return-value]  # both are there


def in_words(difference: Difference, start: str = "construction") -> str:
    """A sentence with the place, the seen value and the right one.

    ``start``: the moment of the first observation of ranks.
    """
    when = f"after {start}" if difference.place < 0 else f"after event {difference.place}"
    told = [shown(values, difference.element) for values in (difference.actual, difference.expected)]
    if difference.kinds:
        told = [f"{value} ({kind})" for value, kind in zip(told, difference.kinds, strict=True)]
    what = f"{_quantity(difference)}{difference.at}"
    return f"On rank {difference.rank}, {when}, {what} is {told[0]} where it must be {told[1]}."


def _kind(values: Any) -> str | None:
    """The dtype and shape."""
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
    """One element in words, or the interval in which it must lie; "None" if there is no value."""
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
