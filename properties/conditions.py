"""How ranks run a program, where that is not as usual."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from oracle.program import tuples
from properties.claims import EQUAL_FROM
from properties.part import WHOLE, Part


@dataclass(frozen=True)
class Conditions:
    """What a law may choose, and what ranks must know of an implementation's claims. TypeError for any other name.

    ``part``: which of the program's events are run, or looked at. ``roles``: by rank, that whose samples, errors and
    overflows it has, but not the values that it begins with; empty: its own. ``registered``: the order in which the
    model registers its parameters; empty: the scenario's. ``overflows``: what every coefficient is of a micro-batch
    that overflows; "last" or "first": one alone is infinite, the last of the last or first parameter that backward
    reaches. ``equal_from``: since when ranks are claimed to be equal. ``asks_for_masters``: whether a sharded optimizer
    is asked for the masters of a program that has some; else it is claimed to keep them anyhow. ``around``: the events
    whose forwards call the model itself instead of what wraps it. ``moved``: those before which the model's tensors
    move. ``dropped``: those before which there is a forward, with autograd and in training mode, whose loss is dropped;
    inside ``no_sync`` if the event is a Backward inside it. ``zeroed_late``: the ZeroGrads, each right before a
    Backward, that come between its forwards and its backwards. ``optimizer_first``: whether the caller makes the
    optimizer right after wrapping, and not at the first step. ``hooked``: how often a hook of the caller's doubles each
    gradient that comes to a parameter. ``swapped``: the events before which the caller swaps other weights in,
    evaluates the model with them, and swaps them out again. ``copied``: the events after which it puts copies in the
    place of gradients. ``metrics``: those right after which it adds a number of its own up over the ranks, as if to
    print its loss. ``beside``: whether a `properties.companion` takes its turns right "before" or "after" this model.
    ``joint``: whether a partner, with which it has one loss, has its forwards right "before" or "after" this model's.
    ``collects``: whether Python's garbage is collected after a ZeroGrad, where bytes are counted.
    """

    part: Part = WHOLE
    roles: tuple[int, ...] = ()
    registered: tuple[int, ...] = ()
    overflows: str = "inf"
    equal_from: str = EQUAL_FROM[0]
    asks_for_masters: bool = True
    around: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    zeroed_late: tuple[int, ...] = ()
    optimizer_first: bool = False
    hooked: int = 0
    swapped: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    metrics: tuple[int, ...] = ()
    beside: str = ""
    joint: str = ""
    collects: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Conditions":
        """Those that are told by name, as `unusual` gives them or as they come out of JSON; the others are as usual."""
        values = tuples(dict(told))
        if isinstance(part := values.get("part"), Mapping):
            values["part"] = Part(**part)
        return cls(**values)

    def unusual(self) -> dict[str, Any]:
        """Those that are not as usual, by name, as JSON has them."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if getattr(self, name) != usual[name]}


AS_USUAL = Conditions()
