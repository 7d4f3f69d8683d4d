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
from lockstep.properties.diagnosing.rounding import rounded_to
from lockstep.properties.law import Law, concerns
from lockstep.properties.strategies.independent import sample
from lockstep.properties.trial import SetAside, Trial
from lockstep.properties.verdict import LawBroken

SAMPLE = 20  # programs from which the number of undrawn ones is estimated


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
                    self.unclaimed = replace(self.unclaimed, wire_dtype=dtype)  # so that drawn values fit the dtype
                    self.undrawn.append(defect)
            if defect.claim and all(cause.only == "" for cause in defect.causes):
                without = off(defect.claim, getattr(claims, defect.claim))
                with suppress(ValueError):  # another claim depends on this one
                    self.unclaimed = replace(self.unclaimed, **{defect.claim: without})
                    self.undrawn.append(defect)

    def __call__(self, drawn: Any) -> None:
        """Raise SetAside if the drawn program contains a known cause."""
        for defect in self.defects:
            if defect.within(drawn, self.law.number):
                self.left_out[defect.id] += 1
                raise SetAside(defect.id)

    def excuse(self, trial: Trial, broken: LawBroken) -> None:
        """Raise SetAside if a failure is due to a dtype with too few digits that is set aside.

        Values are drawn to fit that dtype, but what a program makes of them need not fit.
        """
        for defect in self.defects:
            if (dtype := defect.causes[0].rounds_to) and rounded_to(trial, broken) == dtype:
                self.left_out[defect.id] += 1
                raise SetAside(defect.id)

    @property
    def takes_all(self) -> str:
        """The id of the defect whose cause is in every program of the law, so that nothing is left to draw; else ""."""
        if concerns(self.law, self.unclaimed):
            return ""
        return next(each.id for each in self.undrawn)

    def draws(self) -> st.SearchStrategy[Any]:
        """The draws of the law. Programs set aside are left out here if declining a claim leaves out just these."""
        return self.law.draws(self.unclaimed)

    def count_undrawn(self, claims: Claims, examples: int) -> None:
        """Estimate from a sample how many programs the declined claims have left out, and add them to ``left_out``."""
        if not self.undrawn:
            return
        drawn = sample(self.law.draws(claims), SAMPLE)
        for defect in self.undrawn:
            if defect.causes[0].rounds_to:  # every program was drawn with other values
                self.left_out[defect.id] += examples
                continue
            there = sum(defect.within(each, self.law.number) for each in drawn)
            self.left_out[defect.id] += round(examples * there / max(1, len(drawn) - there))
