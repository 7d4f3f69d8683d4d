"""One rank's evaluations: forwards without autograd."""

from collections.abc import Sequence

import torch

from lockstep.oracle.events import Evaluate
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.probes import Home
from lockstep.properties.ranks.wrapped import Wrapped
from lockstep.properties.seen import Values


class Evaluating(Wrapped):
    """A model that is also evaluated. What an evaluation gives: the parameters as it has read them, None where it was
    not seen to.
    """

    def evaluate(self, event: Evaluate, fails: str = "") -> Values:
        """A forward that no backward follows. ``fails``: where it raises."""
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
        """Coefficients that are all alike."""
        return [
            torch.full(told.shape, number, dtype=getattr(torch, told.dtype), device=self.device)
            for told in self.scenario.parameters
        ]


def forget_what_was_read(homes: Sequence[Home]) -> None:
    """Of all the parameters in these modules."""
    for home in homes:
        home.read.clear()


def what_was_read(homes: Sequence[Home]) -> Values:
    """By parameter, given the module that holds each."""
    return [home.read.get(index) for index, home in enumerate(homes)]
