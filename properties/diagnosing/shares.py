"""The origin of a wrong value: the coefficient of every contribution in it, found by linearity.

The scenario is run again once for each contribution, with all others silenced. The value that then arrives in the wrong
element is the coefficient of that contribution. It is exact in any dtype, whatever the implementation does.
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
    """A contribution to a gradient, and its actual and expected coefficients in the wrong element."""

    microbatch: int
    sample: int
    parameter: int
    element: int
    actual: Fraction
    expected: Fraction


def shares_of(trial: Trial, broken: LawBroken, difference: Difference) -> list[Share] | None:
    """The nonzero shares of the wrong element of a gradient.

    None if linearity gives no answer: for other values than gradients, for the quadratic probe, after clipping or an
    overflow, for a gradient without elements or of a wrong shape, and if a non-finite value comes from elsewhere. Also
    None if too many runs would be needed.
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
    # State from another run's file contains all contributions.
    begins_elsewhere = bool(broken.choices.get("part", {}).get("file"))
    if difference.quantity != "gradient" or not linear or begins_elsewhere or len(contributions) > MOST_RUNS:
        return None
    wrong = scenario.parameters[difference.parameter]
    if not wrong.count or (difference.actual is not None and difference.actual.shape != wrong.shape):
        return None  # the element does not exist, or is another one
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
