"""What the simulated ranks share during one example: the baton, the timeline, and each collective's meeting place."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from worlds.contract import Collective
from worlds.sim.baton import Baton
from worlds.sim.belongings import Belongings

Flat: TypeAlias = torch.Tensor  # a collective's input or output on one rank, all tensors of the call end to end


class Mismatch(RuntimeError):
    """Members of a group called different collectives at the same place of the group's sequence."""


@dataclass
class Meeting:
    """One collective, as far as its members have arrived."""

    calls: dict[int, Collective] = field(default_factory=dict)
    inputs: dict[int, Flat] = field(default_factory=dict)
    results: list[Flat | None] | None = None
    mismatch: str = ""
    waiting: list[int] = field(default_factory=list)  # global ranks

    @property
    def over(self) -> bool:
        """Whether nobody need wait any longer."""
        return self.results is not None or bool(self.mismatch)


@dataclass
class Run:
    """What the groups of all ranks share during one example."""

    baton: Baton
    contents: bool
    at_once: bool
    timeline: list[list[Collective]]  # by global rank
    meetings: dict[tuple[str, int], Meeting] = field(default_factory=dict)  # (group, place in its sequence)
    messages: dict[str, list[Any]] = field(default_factory=dict)  # by group: sends and receives without their partner
    belongings: dict[int, Belongings] = field(default_factory=dict)  # by global rank
    failed: bool = False  # whether a rank raised an error of its own: others that then wait are not at fault

    def block(self, rank: int, reason: object) -> None:
        """Lets other ranks run until somebody wakes this one, and gives the rank back what is its own."""
        self.belongings[rank].put_away()
        try:
            self.baton.block(rank, reason)
        finally:
            self.belongings[rank].take_out()
