"""What each rank would own as a process, kept apart although the simulated ranks share one."""

import os

import torch


class Belongings:
    """A rank's random numbers and environment: put away when it gives the baton up, taken out when it has it again."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        self._random = torch.default_generator.get_state()

    def put_away(self) -> None:
        """Remembers where the random numbers are."""
        self._random = torch.default_generator.get_state()

    def take_out(self) -> None:
        """Makes this rank's what the process has."""
        torch.default_generator.set_state(self._random)
        os.environ.update(self._environment)
