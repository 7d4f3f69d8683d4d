"""The unusual conditions under which ranks run a program."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lockstep.oracle.program import tuples
from lockstep.properties.claims import EQUAL_FROM, SAVED_BY
from lockstep.properties.part import WHOLE, Part

# The conditions that follow from the claims alone.
OF_CLAIMS = ("equal_from", "asks_for_masters", "averages_in_step", "zeros", "saved_by", "pieces", "in_layers")


@dataclass(frozen=True)
class Conditions:
    """The choices of a law, and the claims that ranks must know. Raises TypeError for any other name.

    Events are named by their places in the program.
    """

    part: Part = WHOLE  # the events of the program that are run, or observed
    equal_from: str = EQUAL_FROM[0]  # the moment from which on ranks must be equal
    # True: master weights are requested from a sharded optimizer if the program has some. False: it always keeps them.
    asks_for_masters: bool = True
    optimizer: str = ""  # the class of the plain optimizer, named as in claims; empty: the scenario's
    averages_in_step: bool = False  # a sharded optimizer averages gradients itself
    zeros: bool = False  # gradients that no rank has are zeros in its step
    saved_by: str | None = SAVED_BY[0]  # the ranks that save its state
    pieces: bool = False  # ranks may hold pieces of parameters that only Lockstep can assemble
    in_layers: bool = False  # plain layers hold parameters, where they can
    withheld: bool = False  # only ranks that had a gradient of their own get its mean
    closures: bool = False  # gradients exist only after its step has called a closure
    added: int = -1  # the Step right before which the last group is added to it; negative: it is made with all groups
    scheduled: bool = False  # a torch scheduler sets the learning rates
    collects: bool = False  # if bytes are counted, Python's garbage is collected when gradients are dropped

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Conditions":
        """The conditions from their names, as given by `unusual` or read from JSON. The others have their defaults."""
        values = tuples(dict(told))
        if isinstance(part := values.get("part"), Mapping):
            values["part"] = Part(**part)
        return cls(**values)

    def unusual(self) -> dict[str, Any]:
        """The conditions that differ from their defaults, by name, as JSON has them."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if getattr(self, name) != usual[name]}


AS_USUAL = Conditions()
