"""One rank between the events of a program: what the caller does around them, and what is seen after them."""

import contextlib

import torch

from lockstep.oracle.events import Event
from lockstep.properties.ranks.evaluating import Evaluating


class Rank(Evaluating):
    """One rank's run through a program, each of whose events a module of `properties.ranks.events` carries out.

    A kind of rank that notes more overrides `during`, entered while an event is carried out, and `ended`.
    """

    def during(self, event: Event) -> contextlib.AbstractContextManager[object]:
        """Entered while an event is carried out: not before by the caller, nor while it is looked what came of it."""
        return contextlib.nullcontext()

    def ended(self, event: Event) -> None:
        """Called after an event, and after all that is seen of it; also where this rank has skipped it."""

    def looks_at(self, place: int) -> bool:
        """True if parameters, gradients and the optimizer's state are looked at after the event of that place."""
        return place >= self.conditions.part.looks

    def after(self, event: Event) -> None:
        """Note what is to be seen right after the event that runs now."""
        self.note_random_numbers(self.place)

    def show(self, event: Event) -> None:
        """Look at what the event shows."""
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
