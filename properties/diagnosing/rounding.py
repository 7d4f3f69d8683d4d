"""Rounding as the reason of a failure: gradients travel in a narrower dtype than any parameter has."""

import numpy as np

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import WIRES
from lockstep.oracle.state import Inside
from lockstep.properties.judging.traffic import reductions
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken

SPARE = 2  # digits by which a sum may be off that was rounded more than once


def narrow_wire(trial: Trial, broken: LawBroken) -> str:
    """The dtype of 16 bits in which gradients travel, though no parameter has 16 bits and nobody claims it; or "".

    Always "" for what is no program of probes.
    """
    if not isinstance(broken.scenario, Scenario):
        return ""
    claims, own = trial.claims, {parameter.dtype for parameter in broken.scenario.parameters}
    told = {call.dtype for report in broken.outcome for call in reductions(report.collectives)}
    narrow = [dtype for dtype in WIRES if dtype in told - own]
    return "" if not narrow or claims.wire_dtype or claims.reduce_dtype or claims.gradient_dtype else narrow[0]


def rounded_to(trial: Trial, broken: LawBroken) -> str:
    """The dtype to which the first wrong value was rounded on its way, if it is off by no more than that; else ""."""
    dtype, difference = narrow_wire(trial, broken), broken.difference
    if not dtype or difference is None or difference.kinds or difference.quantity != "gradient":
        return ""
    if difference.actual is None or difference.expected is None:
        return ""
    wanted = difference.expected.low if isinstance(difference.expected, Inside) else difference.expected
    seen, right = (float(np.asarray(values, np.float64)[difference.element]) for values in (difference.actual, wanted))
    return dtype if abs(seen - right) <= abs(right) * 2.0 ** (SPARE - FORMATS[dtype].precision) else ""
