"""The origin of a wrong value: the coefficient of every contribution in it, by linearity.

The scenario is run again with all contributions but one silenced, once for each. What then arrives in the wrong element
is the coefficient of that contribution: exact, in any dtype, whatever the implementation did with it.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lockstep.oracle.events import Clip
from lockstep.oracle.fingerprint import multiplier
from lockstep.properties.difference import Difference
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused

MOST_RUNS = 64


@dataclass(frozen=True)
class Share:
    """One contribution to a gradient, and the coefficients it has and must have in the wrong element."""

    microbatch: int
    sample: int
    parameter: int
    element: int
    actual: Fraction
    expected: Fraction


def shares_of(trial: Trial, broken: LawBroken, difference: Difference) -> list[Share] | None:
    """The shares of a wrong gradient's element that are or must be there.

    None where linearity does not tell: for anything but gradients, under the quadratic probe, after clipping or an
    overflow, where a gradient has no elements or another shape, where something that is no number comes into it from
    elsewhere, and where more runs would be needed than are worth it.
    """
    scenario = broken.scenario
    counts = [parameter.count for parameter in scenario.parameters]
    contributions = [
        (microbatch, sample, parameter, element)
        for microbatch, event in enumerate(scenario.microbatches)
        for sample, order in enumerate(event.orders)
        for parameter in sorted(order)
        for element in range(counts[parameter])
    ]
    overflows = any(batch.overflow for batch in scenario.microbatches)
    linear = scenario.probe == "linear" and not overflows and not scenario.has(Clip)
    # What comes from a file that another run has left has all contributions in it.
    begins_elsewhere = bool(broken.choices.get("part", {}).get("file"))
    if difference.quantity != "gradient" or not linear or begins_elsewhere or len(contributions) > MOST_RUNS:
        return None
    wrong = scenario.parameters[difference.parameter]
    if not wrong.count or (difference.actual is not None and difference.actual.shape != wrong.shape):
        return None  # there is no such element, or it is another one
    shares = []
    for contribution in contributions:
        alone = replace(scenario, only=contribution)
        try:
            seen = trial.run(alone, **broken.choices).observations[difference.rank]["gradients"][difference.place]
        except (LawBroken, Refused):
            return None
        expected = trial.expected(alone)
        wanted = expected.gradients[difference.place]
        both: list[Any] = [each[difference.parameter] for each in (seen, wanted)]
        values = [0.0 if each is None else float(each[difference.element]) for each in both]
        if not all(map(math.isfinite, values)):
            return None
        shares.append(Share(*contribution, *(Fraction(value) / multiplier(scenario) for value in values)))
    return [share for share in shares if share.actual or share.expected]
