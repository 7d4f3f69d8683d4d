"""The unusual conditions of a run (`properties.conditions.Conditions`), in words."""

from collections.abc import Mapping
from typing import Any

from lockstep.properties.naming import SAVES
from lockstep.properties.reports.paragraphs import entry

OPTIMIZER = "; the plain optimizer is {}, with those of these options that it takes"
CLOSURES = "; each step is given a closure, and gradients are there only once that has run"
WITHHELD = "; a rank that had no gradient of a parameter gets no mean of it, and has None when the optimizer steps"
ADDED = "; the last group is added to the optimizer right before event {}"
SCHEDULED = "; a scheduler of torch's sets the learning rates"
# How a law may run a program otherwise than as usual; what is said where that is not what makes it fail.
RUN_OTHERWISE = {
    "asynchrony": "when collectives read and write",
    "order": "the order in which reductions add",
    "part": "what is saved, loaded or left out",
    "optimizer": "the class of the optimizer",
    "withheld": "that some ranks have no mean",
    "closures": "that steps are given closures",
    "added": "the group that is added late",
    "scheduled": "that a scheduler sets learning rates",
}
AS_USUAL = "the program goes wrong when it is run as usual, too: {} need not be the reason."


def in_words(choices: Mapping[str, Any]) -> str:
    """The conditions of the whole program, to stand behind its words."""
    how = OPTIMIZER.format(choices["optimizer"].replace(":", ".")) if "optimizer" in choices else ""
    how += WITHHELD if "withheld" in choices else ""
    how += CLOSURES if "closures" in choices else ""
    how += ADDED.format(choices["added"]) if "added" in choices else ""
    return how + (SCHEDULED if "scheduled" in choices else "")


def right_before(choices: Mapping[str, Any], place: int) -> list[str]:
    """The lines on what takes place right before an event."""
    return [f"      {SAVES}"] if place in choices.get("part", {}).get("saves", ()) else []


def no_reason(choices: Mapping[str, Any]) -> list[str]:
    """Of a program that goes wrong by itself, that what a law does beside need not be the reason."""
    beside = [words for choice, words in RUN_OTHERWISE.items() if choices.get(choice)]
    return entry("Note", AS_USUAL.format(" and ".join(beside))) if beside else []
