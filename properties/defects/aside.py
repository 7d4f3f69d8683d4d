"""Setting aside: programs that contain the cause of a known defect are not judged."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from lockstep.properties.claims import Claims
from lockstep.properties.defects.cause import off
from lockstep.properties.defects.defect import Defect
from lockstep.properties.law import Law, concerns
from lockstep.properties.strategies.independent import sample
from lockstep.properties.trial import SetAside

SAMPLE = 20  # programs of which is told how many contain what is not drawn at all


class Aside:
    """The defects that are set aside for one law. ``left_out`` counts the programs that were left out, by defect."""

    def __init__(self, defects: Sequence[Defect], law: Law, claims: Claims) -> None:
        self.defects, self.law = tuple(defects), law
        self.left_out: Counter[str] = Counter()
        self.unclaimed = claims
        self.undrawn: list[Defect] = []
        for defect in defects:
            if dtype := defect.causes[0].rounds_to:
                with suppress(ValueError):
                    self.unclaimed = replace(self.unclaimed, wire_dtype=dtype)  # what is drawn then fits it
                    self.undrawn.append(defect)
            if defect.claim and all(cause.only == "" for cause in defect.causes):
                without = off(defect.claim, getattr(claims, defect.claim))
                with suppress(ValueError):  # others of those declined go with it
                    self.unclaimed = replace(self.unclaimed, **{defect.claim: without})
                    self.undrawn.append(defect)

    def __call__(self, drawn: Any) -> None:
        """Raises SetAside if the drawn program contains a known cause."""
        for defect in self.defects:
            if defect.within(drawn, self.law.number):
                self.left_out[defect.id] += 1
                raise SetAside(defect.id)

    @property
    def takes_all(self) -> str:
        """The defect whose cause is in every program of the law, so that nothing is left to draw; empty without one."""
        if concerns(self.law, self.unclaimed):
            return ""
        return next(each.id for each in self.undrawn)

    def draws(self) -> st.SearchStrategy[Any]:
        """The draws of the law. Programs set aside are left out here if declining a claim leaves out just these."""
        return self.law.draws(self.unclaimed)

    def count_undrawn(self, claims: Claims, examples: int) -> None:
        """Estimates from a sample how many programs declined claims have left out, and adds them to ``left_out``."""
        if not self.undrawn:
            return
        drawn = sample(self.law.draws(claims), SAMPLE)
        for defect in self.undrawn:
            if defect.causes[0].rounds_to:  # each was drawn with other numbers than it would have had
                self.left_out[defect.id] += examples
                continue
            there = sum(defect.within(each, self.law.number) for each in drawn)
            self.left_out[defect.id] += round(examples * there / max(1, len(drawn) - there))
