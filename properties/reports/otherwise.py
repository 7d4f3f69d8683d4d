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
    difference,
    exchanged,
    names,
)
from lockstep.properties.reports.paragraphs import entry

# How a micro-batch overflows.
OVERFLOWS = {
    "nan": "; what overflows is nan",
    "-inf": "; what overflows is -inf",
    "last": "; of what overflows one element alone is inf, of the last parameter that backward reaches",
    "first": "; of what overflows one element alone is inf, of the first parameter that backward reaches",
}
# What is said of another model that is trained beside the one of the program, or jointly with it.
OTHER = {
    "beside": "; another such model, a window ahead and with gradients of the other sign, takes turns with it, "
    "right {} it",
    "joint": "; another such model, with gradients of the other sign, runs the same: its forwards come right {} "
    "this one's, and one backward is of both losses",
}
# What is said of an event that is run otherwise than its words say.
GOES_AROUND = "of a forward of the model itself, around what wraps it"
LATE = "between the forward and the backward of the next event"
HOOKED = "; a hook of the caller's on each parameter multiplies what comes to it by {}"
MODULE_HOOKED = "; a hook of the caller's on the model multiplies each loss by {}"
UNITS_HOOKED = (
    "; one on it multiplies what units are given by -1/4, and theirs multiply that by 2, what they give by 2, and what "
    "comes back to them by -1"
)
HOOKED_BEFORE = ", from before wrapping on"
KEEPS_GRADIENTS = "; hooks of the caller's, from after wrapping on, keep the gradients that have accumulated"
OPTIMIZER_FIRST = "; the optimizer is made right after wrapping"
OPTIMIZER_BEFORE = "; the optimizer is made right before wrapping"
ASKS_THE_WRAPPER = "; parameters and state dict are those that the wrapper tells of itself"
SEEDED = "; random numbers are seeded before wrapping, on each rank otherwise"
REGISTERED = "; parameters are registered in the order {}"
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
    "optimizer_first": "that the optimizer is made early",
    "optimizer_before": "that the optimizer is made before wrapping",
    "seeded": "that random numbers are seeded",
    "asks_the_wrapper": "that the wrapper is asked for parameters and state",
    "beside": "the other model",
    "joint": "the other model",
    "differs": "that one rank's model differs",
    "roles": "which rank has which samples",
    "registered": "the order of registration",
    "hooked": "the caller's hooks",
    "module_hooked": "the caller's hooks",
    "keeps_gradients": "what the caller's hooks keep",
    "metrics": "the caller's own collectives",
}
AS_USUAL = "the program goes wrong when it is run as usual, too: {} need not be the reason."


def in_words(choices: Mapping[str, Any], units: bool) -> str:
    """What goes for the whole program, to stand behind its words. ``units``: whether its model has any."""
    how = OVERFLOWS.get(choices.get("overflows", ""), "")
    how += "".join(words.format(choices[way]) for way, words in OTHER.items() if way in choices)
    how += OPTIMIZER_FIRST if "optimizer_first" in choices else ""
    how += OPTIMIZER_BEFORE if "optimizer_before" in choices else ""
    how += ASKS_THE_WRAPPER if "asks_the_wrapper" in choices else ""
    how += SEEDED if "seeded" in choices else ""
    for way, words in {"hooked": HOOKED, "module_hooked": MODULE_HOOKED}.items():
        how += words.format(2**doublings) if (doublings := choices.get(way)) else ""
    how += UNITS_HOOKED if units and "module_hooked" in choices else ""
    how += KEEPS_GRADIENTS if "keeps_gradients" in choices else ""
    how += HOOKED_BEFORE if "hooked_before" in choices else ""
    if differs := choices.get("differs"):
        how += f"; {difference(differs, choices.get('differs_in', 0), choices.get('loner', 0))}"
    how += f"; {exchanged(roles)}" if (roles := choices.get("roles")) else ""
    return how + (REGISTERED.format(names(order)) if (order := choices.get("registered")) else "")


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
