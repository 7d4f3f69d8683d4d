"""How a law runs a program otherwise than as usual (`properties.conditions.Conditions`), in words."""

from collections.abc import Mapping
from typing import Any

from lockstep.oracle.events import Event
from lockstep.properties.naming import (
    GRADIENTS_OF,
    HALVES,
    MEASURES,
    METRIC,
    SAVES,
)
from lockstep.properties.reports.paragraphs import entry

# How a micro-batch overflows.
OVERFLOWS = {
    "nan": "; what overflows is nan",
    "-inf": "; what overflows is -inf",
    "last": "; of what overflows one element alone is inf, of the last parameter that backward reaches",
    "first": "; of what overflows one element alone is inf, of the first parameter that backward reaches",
}
# What is said of an event that is run otherwise than its words say.
GOES_AROUND = "of a forward of the model itself, around what wraps it"
LATE = "between the forward and the backward of the next event"
# How a law may run a program otherwise than as usual; what is said where that is not what makes it fail.
RUN_OTHERWISE = {
    "asynchrony": "when collectives read and write",
    "order": "the order in which reductions add",
    "part": "what is saved, loaded or left out",
    "overflows": "how a micro-batch overflows",
    "around": "that forwards go around the wrapper",
    "halved": "the caller's half of the loss",
    "differentiated": "the gradients that the caller takes itself",
    "measured": "the loss that is measured",
    "zeroed_late": "the moment at which gradients are zeroed",
    "metrics": "the caller's own collectives",
}
AS_USUAL = "the program goes wrong when it is run as usual, too: {} need not be the reason."


def in_words(choices: Mapping[str, Any]) -> str:
    """What goes for the whole program, to stand behind its words."""
    return OVERFLOWS.get(choices.get("overflows", ""), "")


def around(choices: Mapping[str, Any], place: int, event: Event) -> tuple[list[str], list[str]]:
    """What takes place right before an event, and right after it or beside it, a line each."""

    def chosen(choice: str) -> bool:
        return place in choices.get(choice, ())

    before = [(place in choices.get("part", {}).get("saves", ()), SAVES)]
    after = [(chosen("around"), f"{'':10}{GOES_AROUND}")]
    when = "before" if choices.get("half_first") else "after"
    after += [(chosen("halved"), f"{'':10}{HALVES.format(when)}")]
    what = "half of the loss" if choices.get("with_outputs") else "the loss"
    after += [(chosen("differentiated"), f"{'':10}{GRADIENTS_OF.format(what)}")]
    after += [(chosen("measured"), f"{'':10}{MEASURES}")]
    after += [(chosen("metrics"), f"{'':10}{METRIC}"), (chosen("zeroed_late"), LATE)]
    first, then = ([f"      {words}" for there, words in each if there] for each in (before, after))
    return first, then


def no_reason(choices: Mapping[str, Any]) -> list[str]:
    """Of a program that goes wrong by itself, that what a law does beside need not be the reason."""
    beside = [words for choice, words in RUN_OTHERWISE.items() if choices.get(choice)]
    return entry("Note", AS_USUAL.format(" and ".join(beside))) if beside else []
