"""One rank's evaluations: forwards without autograd, and what the caller does to have them of other weights."""

import copy
from collections.abc import Sequence

import torch

from lockstep.oracle.events import Evaluate
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.probes import Home
from lockstep.properties.ranks.wrapped import Wrapped
from lockstep.properties.seen import OTHER_WEIGHTS, Values


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

    def evaluate_duplicates(self) -> list[Values]:
        """A deep copy of the model, as for an average of its weights, and an evaluation of each that there is."""
        self.duplicates.append(copy.deepcopy(self.probe))
        found = []
        for duplicate in self.duplicates:
            forget_what_was_read(duplicate.homes)
            with torch.no_grad():
                duplicate.eval()(self.filled_with(0.0), tuple(range(len(duplicate.homes))))
            found.append(what_was_read(duplicate.homes))
        return found

    def act_alone(self) -> Values:
        """An evaluation that the other ranks do not have, and a state dict, with which nothing is done."""
        read = self.evaluate(Evaluate())
        asked = self.wrapped if hasattr(self.wrapped, "state_dict") else self.probe
        asked.state_dict()
        return read

    def evaluate_swapped(self) -> Values:
        """An evaluation with other weights, such as an average of them, in the place of the model's.

        They are written as most do it, past autograd and its version counter.
        """
        weights = self.probe.tensors()
        kept = [tensor.detach().clone() for tensor in weights]
        for tensor in weights:
            tensor.data.fill_(OTHER_WEIGHTS)
        read = self.evaluate(Evaluate())
        for tensor, values in zip(weights, kept, strict=True):
            tensor.data.copy_(values)
        return read

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
