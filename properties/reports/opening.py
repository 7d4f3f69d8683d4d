"""The opening of every report on a program, a call or a real model."""

from lockstep.properties.law import Law, sentence
from lockstep.properties.reports.paragraphs import entry
from lockstep.properties.reports.whereabouts import whereabouts
from lockstep.properties.searching.search import Failure
from lockstep.properties.trial import Trial


def opening(law: Law, trial: Trial, failure: Failure, assumed: str = "") -> list[str]:
    """The opening: implementation, law, result, the ``assumed`` claims if they matter, and the failing line of code."""
    broken = failure.broken
    words = [f"{trial.implementation.short} breaks {law.number} on the {trial.world.name} world: {failure.verdict}", ""]
    words += entry("The law", sentence(law)) + entry("Result", broken.result)
    words += entry("Assumed", assumed) if assumed else []
    if where := whereabouts(broken.outcome):
        words += entry("Where", "; ".join(where) + ".")
    return words
