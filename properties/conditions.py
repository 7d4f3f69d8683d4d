"""The unusual conditions under which ranks run a program."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lockstep.oracle.program import tuples
from lockstep.properties.claims import EQUAL_FROM, SAVED_BY
from lockstep.properties.part import WHOLE, Part

# Those that follow from what is claimed, whatever the law.
OF_CLAIMS = ("equal_from", "asks_for_masters", "averages_in_step", "zeros", "saved_by", "pieces", "in_layers")


@dataclass(frozen=True)
class Conditions:
    """The choices of a law, and the claims that ranks must know. Raises TypeError for any other name.

    Events go by their places in the program.
    """

    part: Part = WHOLE  # which of the program's events are run, or looked at
    equal_from: str = EQUAL_FROM[0]  # since when ranks are claimed to be equal
    # Whether a sharded optimizer is asked for the masters of a program that has some; else it is claimed to keep them.
    asks_for_masters: bool = True
    optimizer: str = ""  # the class of the plain optimizer, as claims name it; empty: the scenario's
    averages_in_step: bool = False  # a sharded optimizer is claimed to average gradients itself
    zeros: bool = False  # gradients that no rank has are zeros when it steps
    saved_by: str | None = SAVED_BY[0]  # who is claimed to save its state
    pieces: bool = False  # ranks may hold parameters in pieces, which nobody but us may put together
    in_layers: bool = False  # plain layers hold the parameters that they can
    withheld: bool = False  # a sharded optimizer finds means only on ranks that had a gradient of their own
    closures: bool = False  # its steps find gradients only once they have called a closure
    added: int = -1  # the Step right before which the last group is added to it; below zero: it is made with all
    scheduled: bool = False  # a scheduler of torch's sets learning rates
    collects: bool = False  # Python's garbage is collected where gradients end, if bytes are counted

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Conditions":
        """The conditions from names, as `unusual` gives them or as they come out of JSON; the others are as usual."""
        values = tuples(dict(told))
        if isinstance(part := values.get("part"), Mapping):
            values["part"] = Part(**part)
        return cls(**values)

    def unusual(self) -> dict[str, Any]:
        """The unusual conditions by name, as JSON has them."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if getattr(self, name) != usual[name]}


AS_USUAL = Conditions()
