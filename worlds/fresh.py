"""Reset the state that an example must not inherit from the one before it on the same process or thread."""

import os
import random
import sys

import numpy as np
import torch


def seed(rank: int) -> None:
    """Start random numbers from the same seeds in every example.

    torch's start from the same seed on all ranks, as they do if nobody sets a seed. Those of Python and NumPy start
    from a different seed on each rank, because nobody knows theirs. `torch.manual_seed` would seed every accelerator
    too, which takes 0.1 ms.
    """
    torch.default_generator.manual_seed(0)
    random.seed(rank)
    np.random.seed(rank)


class Environment:
    """The environment in which every example of a process begins. Variables that modules set stay: each is imported
    once.
    """

    def __init__(self) -> None:
        self._variables, self._modules = dict(os.environ), len(sys.modules)

    def renew(self, **own: str) -> None:
        """Restore the environment, with these variables of the example's own."""
        if len(sys.modules) != self._modules:
            self._variables, self._modules = dict(os.environ), len(sys.modules)
        variables = {**self._variables, **own}
        if os.environ != variables:
            os.environ.clear()
            os.environ.update(variables)
