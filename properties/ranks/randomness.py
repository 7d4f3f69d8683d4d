"""The random numbers of a rank: the separate generators of torch, NumPy and Python."""

import random

import numpy as np
import torch

from lockstep.properties.seen import Values


def begin(rank: int) -> None:
    """Seed the generators as a caller does, with a different seed on each rank."""
    torch.manual_seed(rank + 1)
    np.random.seed(rank + 1)
    random.seed(rank + 1)


def upcoming(device: torch.device) -> Values:
    """The next number of each generator, in the order of `properties.naming.GENERATORS`.

    The generators do not advance.
    """
    numpys, pythons = np.random.get_state(), random.getstate()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        numbers = torch.rand((), device=device).item(), np.random.rand(), random.random()
    np.random.set_state(numpys)
    random.setstate(pythons)
    return [np.asarray(number) for number in numbers]
