"""How a law looks at a program otherwise than as usual (`properties.conditions.Conditions`), in words."""

from collections.abc import Mapping
from typing import Any

from lockstep.properties.naming import SAVES
from lockstep.properties.reports.paragraphs import entry

# How a law may run a program otherwise than as usual; what is said where that is not what makes it fail.
RUN_OTHERWISE = {
    "asynchrony": "when collectives read and write",
    "order": "the order in which reductions add",
    "part": "what is saved, loaded or left out",
}
AS_USUAL = "the program goes wrong when it is run as usual, too: {} need not be the reason."


def right_before(choices: Mapping[str, Any], place: int) -> list[str]:
    """What takes place right before an event, a line each."""
    return [f"      {SAVES}"] if place in choices.get("part", {}).get("saves", ()) else []


def no_reason(choices: Mapping[str, Any]) -> list[str]:
    """Of a program that goes wrong by itself, that what a law does beside need not be the reason."""
    beside = [words for choice, words in RUN_OTHERWISE.items() if choices.get(choice)]
    return entry("Note", AS_USUAL.format(" and ".join(beside))) if beside else []
