"""The evaluations of one rank: forwards without autograd."""

from collections.abc import Sequence

import torch

from lockstep.oracle.events import Evaluate
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.probes import Home
from lockstep.properties.ranks.wrapped import Wrapped
from lockstep.properties.seen import Values


class Evaluating(Wrapped):
    """A model that is also evaluated.

    An evaluation gives the parameters as forward has read them; None if not recorded.
    """

    def evaluate(self, event: Evaluate, fails: str = "") -> Values:
        """Run a forward without a backward. ``fails``: the place at which it raises."""
        inputs = self.filled_with(0.0)
        forget_what_was_read(self.probe.homes)
        if event.switch:
            self.switch("eval")
        inside = adapter.synchronizing(self.wrapped, event.synchronize)
        try:
            with inside, torch.inference_mode() if event.inference else torch.no_grad():
                outputs: object = self.call(inputs, tuple(range(len(inputs))), fails=fails)
        finally:
            if event.switch:
                self.switch(self.scenario.mode)
        if getattr(outputs, "requires_grad", False):
            self.seen["complaints"].append("what an evaluation gives, without autograd, has a graph behind it")
        return what_was_read(self.probe.homes)

    def filled_with(self, number: float) -> list[torch.Tensor]:
        """Coefficients that all have this value."""
        return [
            torch.full(told.shape, number, dtype=getattr(torch, told.dtype), device=self.device)
            for told in self.scenario.parameters
        ]


def forget_what_was_read(homes: Sequence[Home]) -> None:
    """Forget the recorded values of all parameters in these modules."""
    for home in homes:
        home.read.clear()


def what_was_read(homes: Sequence[Home]) -> Values:
    """The recorded value of each parameter, given the module that holds it."""
    return [home.read.get(index) for index, home in enumerate(homes)]
