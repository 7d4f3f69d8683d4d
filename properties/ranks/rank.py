"""One rank between the events of a program: the actions of the caller around them, and the observations after them."""

import contextlib

import torch

from lockstep.oracle.events import Event
from lockstep.properties.ranks.evaluating import Evaluating


class Rank(Evaluating):
    """One rank's run through a program. The modules of `properties.ranks.events` carry out its events.

    A subclass that records more overrides `during`, which is entered while an event is carried out, and `ended`.
    """

    def during(self, event: Event) -> contextlib.AbstractContextManager[object]:
        """A context entered while an event is carried out.

        Preparation by the caller and observation happen outside it.
        """
        return contextlib.nullcontext()

    def ended(self, event: Event) -> None:
        """Called after an event and all observations of it, even if this rank has skipped the event."""

    def looks_at(self, place: int) -> bool:
        """True if parameters, gradients and optimizer state are observed after the event of that place."""
        return place >= self.conditions.part.looks

    def after(self, event: Event) -> None:
        """Observe what must be observed right after the running event."""
        self.note_random_numbers(self.place)

    def show(self, event: Event) -> None:
        """Observe what the event shows."""
        if not self.looks_at(self.place):
            return
        match event.shows:
            case "gradients":
                self.seen["gradients"][self.place] = self.gradients()
            case "parameters":
                self.seen["parameters"][self.place] = self.parameters()

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss, times the loss scale if there is one."""
        if self.training.scale is not None and "unscale_" not in self.offers:
            self.refuse_of_pieces("unscales gradients", "unscale_")
        return loss if self.training.scale is None else loss * self.training.scale
