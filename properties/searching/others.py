"""Runs shared by laws: each law that it says something about judges it as well.

Worlds take most of an example's time and judging next to none, so every law sees many more programs than are drawn for
its own sake.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.properties.law import Law, plainness, sentence
from lockstep.properties.searching.seldom import Seldom
from lockstep.properties.strategies.features import is_usual
from lockstep.properties.strategies.scenarios import comparable
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused


@dataclass
class Others:
    """The laws that are held together against an implementation on a world.

    ``whole``: whether these are all that there are, so that each may count on what is drawn for the others. ``shown``:
    on how many runs that were made for others each was judged, by its sentence. ``seldom``: chooses what
    is drawn beside that, in a run that has a given time.
    """

    laws: list[Law] = field(default_factory=list)
    whole: bool = False
    shown: Counter[str] = field(default_factory=Counter)
    seldom: Seldom | None = None

    def examples(self, law: Law, most: int) -> int:
        """The number of programs drawn for a law's own sake, where it would have so many by itself."""
        return max(1, round(most * law.share)) if self.whole else most

    def join(self, law: Law) -> Law:
        """The law, on whose examples the others are judged as well: what breaks any of them breaks it."""
        others = sorted((each for each in self.laws if each.name != law.name), key=plainness)
        of_one_run = [each for each in others if each.shown_by is not None]
        related = [each for each in others if each.made_of is not None] if self.whole else []
        if not of_one_run and not related:
            return law
        return replace(law, check=_Joined(law, of_one_run, related, self))

    def broken_by(self, broken: LawBroken, law: Law) -> Law:
        """The law that was broken where programs were drawn for this one."""
        return next((each for each in self.laws if each.name == broken.law), law)

    def also_broken(self, trial: Trial, broken: LawBroken, law: Law) -> list[str]:
        """The numbers and sentences of what else the same program breaks, the plainest first; of laws of one run."""
        trial, scenario = replace(trial, runs={}, witnessed=Counter(), aside=None), broken.scenario
        if not isinstance(scenario, Scenario) or broken.choices.get("asynchrony") or not self.laws:
            return []
        try:
            trial.run(scenario)
        except (LawBroken, Refused, RuntimeError):
            return []  # it does not come to its end, and is no run of any law
        found = []
        for each in sorted(self.laws, key=plainness):
            if each.name != law.name and each.shown_by is not None and each.shown_by(scenario):
                with suppress(Refused, UnsatisfiedAssumption, Inexact):
                    try:
                        each.check(trial, scenario)
                    except LawBroken:
                        found.append(f"{each.number} {sentence(each)}")
        return found


class _Joined:
    """The check of a law, and after it those of the others. Of laws that relate runs each has a turn, for a run more.

    The turn stays with a law that was broken, so that this shrinks and can be seen again.
    """

    def __init__(self, law: Law, of_one_run: Sequence[Law], related: Sequence[Law], told: Others) -> None:
        self._law, self._of_one_run, self._related, self._told = law, of_one_run, related, told
        self._first = zlib.crc32(law.name.encode())  # so that not every law begins with the same
        self._had: Counter[str] = Counter()

    def __call__(self, trial: Trial, drawn: Any) -> None:
        """Raises a LawBroken, which says of which law it is where that is another."""
        trial = replace(trial, runs={})
        assert trial.runs is not None
        self._law.check(trial, drawn)
        judged: set[Scenario] = set()
        self._judge(trial, judged)
        # A law that relates runs itself has made enough of them, and programs that are like no others, often long ones,
        # cost more than they show.
        if self._related and self._law.shown_by is not None and len(judged) == 1:
            (first,) = judged
            if is_usual(first, trial.claims):
                self._relate(first, trial)
                self._judge(trial, judged)

    def _relate(self, scenario: Scenario, trial: Trial) -> None:
        """The law that relates runs and had fewest turns, of those that such a program can be one of."""
        count = len(self._related)
        turned = [self._related[(self._first + turn) % count] for turn in range(count)]
        for law in sorted(turned, key=lambda each: self._had[each.name]):
            if law.made_of is not None and (made := law.made_of(trial.claims, scenario)) is not None:
                self._let(law, trial, made)
                self._had[law.name] += 1
                return

    def _judge(self, trial: Trial, judged: set[Scenario]) -> None:
        """Every law of one run on each run of the implementation that it has not judged yet."""
        assert trial.runs is not None
        of_this = (scenario for implementation, scenario in trial.runs if implementation == trial.implementation)
        for scenario in [each for each in of_this if each not in judged]:
            if beyond(trial.claims, scenario) or comparable(scenario, trial.claims) is None:
                del trial.runs[trial.implementation, scenario]
                continue
            judged.add(scenario)
            if self._told.seldom is not None:
                self._told.seldom.ran(scenario)
            for law in self._of_one_run:
                if law.shown_by is not None and law.shown_by(scenario):
                    self._let(law, trial, scenario)

    def _let(self, law: Law, trial: Trial, drawn: Any) -> None:
        with suppress(Refused, UnsatisfiedAssumption):
            try:
                law.check(replace(trial, witnessed=Counter()), drawn)
            except LawBroken as broken:
                broken.law = law.name
                raise
            self._told.shown[sentence(law)] += 1
