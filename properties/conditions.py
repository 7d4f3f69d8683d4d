"""How ranks run a program, where that is not as usual."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lockstep.oracle.program import tuples
from lockstep.properties.claims import EQUAL_FROM
from lockstep.properties.part import WHOLE, Part


@dataclass(frozen=True)
class Conditions:
    """What a law may choose, and what ranks must know of an implementation's claims. TypeError for any other name.

    Events go by their places in the program.
    """

    part: Part = WHOLE  # which of the program's events are run, or looked at
    # By rank, that whose samples, errors and overflows it has, but not the values that it begins with; empty: its own.
    roles: tuple[int, ...] = ()
    # In what the `loner`'s model differs from the others', one of `properties.naming.DIFFERENCES`, and which parameter.
    differs: str = ""
    differs_in: int = 0
    registered: tuple[int, ...] = ()  # the order in which the model registers its parameters; empty: the scenario's
    # What every coefficient is of a micro-batch that overflows; "last" or "first": one alone is infinite, the last of
    # the last or first parameter that backward reaches.
    overflows: str = "inf"
    equal_from: str = EQUAL_FROM[0]  # since when ranks are claimed to be equal
    # Whether a sharded optimizer is asked for the masters of a program that has some; else it is claimed to keep them.
    asks_for_masters: bool = True
    around: tuple[int, ...] = ()  # the events whose forwards call the model itself instead of what wraps it
    # The ZeroGrads, each right before a Backward, that come between its forwards and its backwards.
    zeroed_late: tuple[int, ...] = ()
    # The Backwards between whose forwards and backwards there is an evaluation, in the mode in which modules train.
    measured: tuple[int, ...] = ()
    # Those of whose last loss the caller makes one half itself, from the parameters; whether before the forward.
    halved: tuple[int, ...] = ()
    half_first: bool = False
    # Those whose last loss the caller makes of gradients that it takes of what the forward gives; or one half of it.
    differentiated: tuple[int, ...] = ()
    with_outputs: bool = False
    loner: int = 0  # the rank that is not as the others
    metrics: tuple[int, ...] = ()  # those right after which it adds a number of its own up over the ranks
    seeded: bool = False  # the caller seeds random numbers before it wraps, on each rank otherwise
    hooked: int = 0  # how often a hook of the caller's doubles each gradient that comes to a parameter
    module_hooked: int = 0  # how often one on the model doubles each loss that it gives
    hooked_before: bool = False  # these hooks are there before the model is wrapped, and not after that
    # After wrapping the caller registers hooks that keep the gradients which they find once these have accumulated.
    keeps_gradients: bool = False
    optimizer_first: bool = False  # the caller makes the optimizer right after wrapping, and not at the first step
    optimizer_before: bool = False  # or right before wrapping
    # Parameters, to step, clip and zero, and weights, to save and load, are those that the wrapper tells of itself, and
    # not the model.
    asks_the_wrapper: bool = False
    beside: str = ""  # a `properties.companion` takes its turns right "before" or "after" this model
    joint: str = ""  # a partner, with which it has one loss, has its forwards right "before" or "after" this model's
    collects: bool = False  # Python's garbage is collected where gradients end, if bytes are counted

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
