"""What an example must not inherit from the one before it on the same process or thread."""

import os
import random
import signal
import sys

import numpy as np
import torch


def fresh_thread() -> None:
    """Sets what torch keeps per thread to how torch begins; looks first, for setting takes longer."""
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)


def fresh_process() -> None:
    """Sets what torch keeps per process to how torch begins, and lets no alarm of the last example ring in this one."""
    if torch.get_default_dtype() is not torch.float32:
        torch.set_default_dtype(torch.float32)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    signal.setitimer(signal.ITIMER_REAL, 0)


def seed(rank: int) -> None:
    """Random numbers start from the same seeds in every example: torch's on all ranks, as they do where nobody sets a
    seed, those of Python and NumPy on each from its own, as nobody knows which they are.

    `torch.manual_seed` would ask every accelerator too, which takes 0.1 ms.
    """
    torch.default_generator.manual_seed(0)
    random.seed(rank)
    np.random.seed(rank)


class Environment:
    """That in which every example of a process begins. What modules set stays: they are imported but once."""

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
