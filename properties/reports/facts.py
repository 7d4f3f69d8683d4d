"""The statements of a failure's report as data, for programs and for `lockstep check --explain`."""

from dataclasses import dataclass

from lockstep.oracle.program import Scenario
from lockstep.properties.diagnosing.diagnosis import Diagnosis
from lockstep.properties.reports.missing import missing
from lockstep.properties.reports.picture import first_clash
from lockstep.properties.reports.whereabouts import whereabouts


@dataclass(frozen=True)
class Facts:
    """A field is empty if nothing is known of it.

    ``where``: the lines of code at which ranks failed, as "rank 0 at my_ddp.py:23, in finish". ``clash``: the first
    collective in which gradients of different parameters meet, as the report numbers it; ``sends``: the parameter of
    each rank there, as "rank 0 sends a[0] = 1". ``missing``: the collective that the run lacks, in a sentence.
    ``guess``: a known cause that gives exactly the wrong values, in words.
    """

    where: tuple[str, ...] = ()
    clash: str = ""
    sends: tuple[str, ...] = ()
    missing: str = ""
    guess: str = ""


def facts(diagnosis: Diagnosis) -> Facts:
    """The facts; of what is no program of events only the lines of code."""
    scenario = diagnosis.broken.scenario
    where = tuple(whereabouts(diagnosis.broken.outcome))
    if not isinstance(scenario, Scenario):
        return Facts(where)
    clash, sends = first_clash(scenario, diagnosis.recorded, scenario.roles, shows_broadcasts(diagnosis))
    return Facts(where, clash, tuple(sends), " ".join(missing(diagnosis)), diagnosis.guess or "")


def shows_broadcasts(diagnosis: Diagnosis) -> bool:
    """True if broadcasts from rank 0 may be at fault, so that a picture shows them and does not only count them."""
    difference = diagnosis.broken.difference
    return difference is not None and (difference.place < 0 or difference.quantity == "buffer")
