"""The random numbers of a rank: torch's, NumPy's and Python's, each its own."""

import random

import numpy as np
import torch

from lockstep.properties.seen import Values


def begin(rank: int) -> None:
    """As a caller seeds them, otherwise on each rank."""
    torch.manual_seed(rank + 1)
    np.random.seed(rank + 1)
    random.seed(rank + 1)


def upcoming(device: torch.device) -> Values:
    """The next number of each, in the order of `properties.naming.GENERATORS`; it stays the next."""
    numpys, pythons = np.random.get_state(), random.getstate()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        numbers = torch.rand((), device=device).item(), np.random.rand(), random.random()
    np.random.set_state(numpys)
    random.setstate(pythons)
    return [np.asarray(number) for number in numbers]
