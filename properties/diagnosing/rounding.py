"""Rounding as the cause of a failure: gradients are sent in a narrower dtype than any parameter has."""

import numpy as np

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import WIRES
from lockstep.oracle.state import Inside
from lockstep.properties.judging.traffic import reductions
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken

SPARE = 2  # binary digits by which a sum may be off after several roundings


def narrow_wire(trial: Trial, broken: LawBroken) -> str:
    """The 16-bit dtype in which gradients are sent, if no parameter has 16 bits and none is claimed; else "".

    Always "" for failures without a program of probes.
    """
    if not isinstance(broken.scenario, Scenario):
        return ""
    claims, own = trial.claims, {parameter.dtype for parameter in broken.scenario.parameters}
    told = {call.dtype for report in broken.outcome for call in reductions(report.collectives)}
    narrow = [dtype for dtype in WIRES if dtype in told - own]
    return "" if not narrow or claims.wire_dtype or claims.reduce_dtype or claims.gradient_dtype else narrow[0]


def rounded_to(trial: Trial, broken: LawBroken) -> str:
    """The dtype to which the first wrong value was rounded on the wire, if its error is no larger; else ""."""
    dtype, difference = narrow_wire(trial, broken), broken.difference
    if not dtype or difference is None or difference.kinds or difference.quantity != "gradient":
        return ""
    if difference.actual is None or difference.expected is None:
        return ""
    wanted = difference.expected.low if isinstance(difference.expected, Inside) else difference.expected
    seen, right = (float(np.asarray(values, np.float64)[difference.element]) for values in (difference.actual, wanted))
    return dtype if abs(seen - right) <= abs(right) * 2.0 ** (SPARE - FORMATS[dtype].precision) else ""
