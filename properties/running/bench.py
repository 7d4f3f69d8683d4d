"""What one pytest process runs laws on: its worlds, started when first used, and the implementations under test."""

from properties.implementations import Implementation, look_up
from properties.running.where import Where
from properties.soundness import Unsound, check
from properties.strategies import MOST_RANKS
from worlds import torchrun
from worlds.contract import World


class Bench:
    """Made for the names that ``--impl`` gave, and where they are to run."""

    def __init__(self, names: list[str], where: Where) -> None:
        self.names, self.where, self._worlds = names, where, dict[str, World]()
        self._implementations: list[Implementation] | None = None
        self._faults: dict[str, str] = {}
        # What did not run: implementation, law's number, law, and the world that cannot have it (empty: not claimed).
        self.left_out: set[tuple[str, str, str, str]] = set()

    def world(self, name: str) -> World:
        """The world of that name; always the same one."""
        if name not in self._worlds:
            self._worlds[name] = self.where.start(name)
        return self._worlds[name]

    def fault(self, name: str) -> str:
        """What is wrong with that world itself, looked at once; empty if nothing is."""
        if name not in self._faults:
            self._faults[name] = ""
            world = self.world(name)
            try:
                check(world, range(1, min(world.ranks or MOST_RANKS, MOST_RANKS) + 1))
            except Unsound as unsound:
                self._faults[name] = str(unsound)
        return self._faults[name]

    @property
    def implementations(self) -> list[Implementation]:
        """What is under test. Raises Unusable."""
        if self._implementations is None:
            self._implementations = look_up(self.names, self.world("sim"))
        return self._implementations

    def close(self) -> None:
        """Ends every process that was started."""
        for world in self._worlds.values():
            getattr(world, "end", world.close)()  # of torchrun: lets the other ranks of the job go as well
        if "torchrun" in self.where.worlds and "torchrun" not in self._worlds:
            torchrun.dismiss()
