"""The verdict of a law that no failure has broken: it holds, or the reason why nothing can be said."""

from collections.abc import Sequence

from lockstep.properties.searching.search import Search
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import HOLDS, NOT_RUNNABLE, REFUSES, SHOWS_NOTHING, SIM_ONLY, NotRunnableHere

ON_SIM_ALONE = (
    "fails on the simulated world only, with any timing of the collectives. Simulated ranks share one process, so "
    "per-process state (class attributes, singletons, threads) can look wrong there though it is right"
)
NOTHING_DRAWN = "with these claims, no program can be drawn for this law"


def without_failure(trial: Trial, found: Search, unseen: Sequence[str]) -> tuple[str, str]:
    """The verdict if no failure remains, and the reason if the law does not hold; the reason is empty if it holds.

    ``found``: the result of the search; failures in it did not occur when run again. ``unseen``: the witnesses of the
    law that never took place.
    """
    if found.failures:
        return SIM_ONLY, ON_SIM_ALONE
    if not found.examples:
        return SHOWS_NOTHING, NOTHING_DRAWN
    if not trial.witnessed[ENDED]:
        if any(isinstance(each, NotRunnableHere) for each in found.refusals):
            return NOT_RUNNABLE, f"not runnable on the {trial.world.name} world: {found.refusals[0]}"
        refused = f"{trial.implementation.name} refused all {found.examples} examples"
        return REFUSES, f"{refused}, so nothing was checked: {next(iter(found.refusals), 'it is not known why')}"
    if found.examples == len(found.refusals):
        return SHOWS_NOTHING, "a part of every example was refused, so nothing could be compared"
    if unseen:
        examples = f"{found.examples} example{'s' * (found.examples > 1)}"
        return SHOWS_NOTHING, f"in {examples} it never happened that {' or that '.join(unseen)}"
    return HOLDS, ""
