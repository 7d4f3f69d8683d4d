"""Reset the state that an example must not inherit from the one before it on the same process or thread."""

import os
import random
import sys

import numpy as np
import torch


def seed(rank: int) -> None:
    """Random numbers start from the same seeds in every example: torch's on all ranks, as they do where nobody sets a
    seed, those of Python and NumPy on each from its own, as nobody knows which they are.

    `torch.manual_seed` would ask every accelerator too, which takes 0.1 ms.
    """
    torch.default_generator.manual_seed(0)
    random.seed(rank)
    np.random.seed(rank)


class Environment:
    """The environment in which every example of a process begins. What modules set stays: each is imported once."""

    def __init__(self) -> None:
        self._variables, self._modules = dict(os.environ), len(sys.modules)

    def renew(self, **own: str) -> None:
        """Makes it what it was, with these variables of the example's own."""
        if len(sys.modules) != self._modules:
            self._variables, self._modules = dict(os.environ), len(sys.modules)
        variables = {**self._variables, **own}
        if os.environ != variables:
            os.environ.clear()
            os.environ.update(variables)
