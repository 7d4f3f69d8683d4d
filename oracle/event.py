"""The base of every event on the oracle's side: the places where it may come, and its effect.

An event is plain data. Its docstring tells its meaning to the author of a training loop.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from lockstep.oracle.expectation import Expectation
from lockstep.oracle.setup import Setup
from lockstep.oracle.short import Short
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State


@dataclass(frozen=True, repr=False)
class Event(Short, ABC):
    """One thing that every rank does. Subclasses are frozen dataclasses, one in each module of `oracle.events`.

    shows              what ranks are asked for right after it: "gradients", "parameters", or "": nothing
    reads_gradients    it reads gradients that are there
    makes_gradients    it is a micro-batch
    builds             everything is built anew
    while_local        it may come while gradients have accumulated that are not synchronized
    while_joined       it may come while ranks run out of micro-batches
    finishes           it ends a synchronization
    """

    shows: ClassVar[str] = ""
    reads_gradients: ClassVar[bool] = False
    makes_gradients: ClassVar[bool] = False
    builds: ClassVar[bool] = False
    while_local: ClassVar[bool] = False
    while_joined: ClassVar[bool] = False
    finishes: ClassVar[bool] = False

    @classmethod
    def module(cls) -> str:
        """The name of the modules that own its facets: its own name in snake case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The event with fields as JSON has them, lists being tuples."""
        return cls(**values)

    @property
    def ends_gradients(self) -> bool:
        """True if it ends the gradients on every rank: they are None or zero afterwards."""
        return False

    @property
    def evaluates(self) -> bool:
        """True if it has a forward that no backward follows."""
        return False

    @property
    def holds_no_sync(self) -> bool:
        """True if the ``no_sync`` around it may go on after it."""
        return False

    def on_one_rank(self) -> "Event":
        """The same event if one rank carries out all acts of single ranks."""
        return self

    def uses_gradients(self, state: State) -> bool:
        """True if it uses gradients when ranks are in this state."""
        return self.reads_gradients

    def check(self, setup: Setup, before: Standing) -> None:
        """ValueError, in one line, if no training loop could have it here."""

    def after(self, setup: Setup, before: Standing) -> Standing:
        """The standing after it."""
        return before

    @abstractmethod
    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Change the values that ranks hold; tell what it shows beside gradients and parameters. Raises Inexact."""
