"""The bench of one process: its worlds, started when first used, and the implementations under test."""

import warnings
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.properties.implementations import Implementation, look_up
from lockstep.properties.models.on_yours import YourModel
from lockstep.properties.ranks.lookup import is_given
from lockstep.properties.running.once import once
from lockstep.properties.running.pace import Pace
from lockstep.properties.running.where import Where
from lockstep.properties.searching.others import Others
from lockstep.properties.soundness import Unsound, check
from lockstep.properties.strategies import MOST_RANKS
from lockstep.properties.trial import Trial
from lockstep.worlds import torchrun
from lockstep.worlds.contract import World


class Bench:
    """The implementations of these names, and the worlds on which they run.

    ``claims``: claims that replace those of every implementation; None: each one's own. ``report``: the folder for the
    scripts of failures.
    """

    def __init__(
        self, names: list[str], where: Where, claims: Mapping[str, Any] | None = None, report: Path | None = None
    ) -> None:
        self.names, self.where, self._worlds = names, where, dict[str, World]()
        self.model: YourModel | None = None  # if set, laws are checked on this model alone
        self.pace: Pace | None = None  # the time of all laws together, if it is limited
        self._claims, self._report = claims, report
        self._implementations: list[Implementation] | None = None
        self._faults: dict[str, str] = {}
        # The laws that did not run: implementation, number, law, and the world that cannot run it (empty: not claimed).
        self.left_out: set[tuple[str, str, str, str]] = set()
        # A folder that all processes of the run share: one of them checks a world for all.
        self.shared: Path | None = None
        # The laws that are checked together, by the names of implementation and world.
        self.others: defaultdict[tuple[str, str], Others] = defaultdict(Others)

    def world(self, name: str) -> World:
        """The world of that name. It is started on the first call."""
        if name not in self._worlds:
            self._worlds[name] = self.where.start(name)
        return self._worlds[name]

    def fault(self, name: str) -> str:
        """The fault of the world itself, checked once in a run; empty if there is none."""
        if name not in self._faults:
            self._faults[name] = once(self.shared, f"fault-{name}", lambda: _fault(self.world(name)))
        return self._faults[name]

    @property
    def implementations(self) -> list[Implementation]:
        """The implementations under test. Raises Unusable."""
        if self._implementations is None:
            self._implementations = look_up(self.names, self.world("sim"), self._claims)
        return self._implementations

    def trial(self, implementation: Implementation, world: str) -> Trial:
        """An implementation on a world. Its failures can be run again on gloo and shrunk on sim."""
        has_gloo = not is_given(implementation.name)  # a target that exists in this process alone cannot run on gloo
        return Trial(
            implementation,
            self.world(world),
            (lambda: self.world("gloo")) if has_gloo else None,
            lambda: self.world("sim"),
            any_order=self.where.any_order,
            world_fault=self.fault(world),
            report=self._report,
        )

    def close(self) -> None:
        """End every process that was started."""
        for world in self._worlds.values():
            getattr(world, "end", world.close)()  # torchrun's `end` also releases the other ranks of the job
        if "torchrun" in self.where.worlds and "torchrun" not in self._worlds:
            torchrun.dismiss()


def _fault(world: World) -> str:
    try:
        with warnings.catch_warnings():  # in this process torch's would come from here
            warnings.simplefilter("ignore")
            check(world, range(1, min(world.ranks or MOST_RANKS, MOST_RANKS) + 1))
    except Unsound as unsound:
        return str(unsound)
    return ""
