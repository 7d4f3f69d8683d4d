"""The unusual conditions of a run (`properties.conditions.Conditions`), in words."""

from collections.abc import Mapping
from typing import Any

from lockstep.properties.naming import SAVES
from lockstep.properties.reports.paragraphs import entry

OPTIMIZER = "; the optimizer is {}, with those of these options that it takes"
CLOSURES = "; each step gets a closure, which computes the gradients"
WITHHELD = "; a rank that had no gradient of a parameter gets no mean of it, and has None when the optimizer steps"
ADDED = "; the last group is added to the optimizer right before event {}"
SCHEDULED = "; a torch scheduler sets the learning rates"
# Unusual conditions under which a law runs a program, for the note that they are not the cause.
RUN_OTHERWISE = {
    "asynchrony": "special timing of collectives",
    "order": "another order of summation",
    "part": "a partial save or load",
    "optimizer": "another optimizer",
    "withheld": "means that some ranks do not get",
    "closures": "closures for steps",
    "added": "a parameter group that is added late",
    "scheduled": "a learning-rate scheduler",
}
AS_USUAL = "the program fails in the same way without {}, so that need not be the cause."


def in_words(choices: Mapping[str, Any]) -> str:
    """The conditions of the whole program, as an addition to its words."""
    how = OPTIMIZER.format(choices["optimizer"].replace(":", ".")) if "optimizer" in choices else ""
    how += WITHHELD if "withheld" in choices else ""
    how += CLOSURES if "closures" in choices else ""
    how += ADDED.format(choices["added"]) if "added" in choices else ""
    return how + (SCHEDULED if "scheduled" in choices else "")


def right_before(choices: Mapping[str, Any], place: int) -> list[str]:
    """The lines on actions right before an event."""
    return [f"      {SAVES}"] if place in choices.get("part", {}).get("saves", ()) else []


def no_reason(choices: Mapping[str, Any]) -> list[str]:
    """The note that the unusual conditions need not be the cause of a program that fails without them."""
    without = [words for choice, words in RUN_OTHERWISE.items() if choices.get(choice)]
    return entry("Note", AS_USUAL.format(" and ".join(without))) if without else []
