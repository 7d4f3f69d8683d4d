"""Runs shared by laws: a run drawn for one law is also judged by every other law that applies to it.

Running a program takes most of an example's time, and judging takes next to none. So sharing runs lets every law see
many more programs than are drawn for it.
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
    """The laws that are checked together against an implementation on a world.

    - ``whole``: these are all laws that apply, so that each may rely on programs drawn for the others.
    - ``shown``: the number of runs made for other laws on which each law was judged, by its sentence.
    - ``seldom``: chooses additional programs in a run of a given time.
    """

    laws: list[Law] = field(default_factory=list)
    whole: bool = False
    shown: Counter[str] = field(default_factory=Counter)
    seldom: Seldom | None = None

    def examples(self, law: Law, most: int) -> int:
        """The number of programs to draw for a law. ``most``: the number if it were checked alone."""
        return max(1, round(most * law.share)) if self.whole else most

    def join(self, law: Law) -> Law:
        """The law with a check that also applies the other laws to its examples.

        A program that breaks any of them breaks it.
        """
        others = sorted((each for each in self.laws if each.name != law.name), key=plainness)
        of_one_run = [each for each in others if each.shown_by is not None]
        related = [each for each in others if each.made_of is not None] if self.whole else []
        if not of_one_run and not related:
            return law
        return replace(law, check=_Joined(law, of_one_run, related, self))

    def broken_by(self, broken: LawBroken, law: Law) -> Law:
        """The law that was broken by a program drawn for ``law``."""
        return next((each for each in self.laws if each.name == broken.law), law)

    def also_broken(self, trial: Trial, broken: LawBroken, law: Law) -> list[str]:
        """The other laws that the same program breaks, with number and sentence, the plainest first.

        Only laws of one run count.
        """
        trial, scenario = replace(trial, runs={}, witnessed=Counter(), aside=None), broken.scenario
        if not isinstance(scenario, Scenario) or broken.choices.get("asynchrony") or not self.laws:
            return []
        try:
            trial.run(scenario)
        except (LawBroken, Refused, RuntimeError):
            return []  # the program does not run to its end, so no law can judge it
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
    """The check of a law, followed by the checks of the others.

    Laws that relate several runs take turns, because each needs another run. A law that was broken keeps its turn, so
    that its failure can be shrunk and repeated.
    """

    def __init__(self, law: Law, of_one_run: Sequence[Law], related: Sequence[Law], told: Others) -> None:
        self._law, self._of_one_run, self._related, self._told = law, of_one_run, related, told
        self._first = zlib.crc32(law.name.encode())  # so that different laws begin with different others
        self._had: Counter[str] = Counter()

    def __call__(self, trial: Trial, drawn: Any) -> None:
        """Raises LawBroken. Its ``law`` names the broken law if that is another one."""
        trial = replace(trial, runs={})
        assert trial.runs is not None
        self._law.check(trial, drawn)
        judged: set[Scenario] = set()
        self._judge(trial, judged)
        # A law that relates runs has already made several. Unusual programs, often long ones, cost more than they show.
        if self._related and self._law.shown_by is not None and len(judged) == 1:
            (first,) = judged
            if is_usual(first, trial.claims):
                self._relate(first, trial)
                self._judge(trial, judged)

    def _relate(self, scenario: Scenario, trial: Trial) -> None:
        """Check one law that relates runs: of those that apply to this program, the one with the fewest turns."""
        count = len(self._related)
        turned = [self._related[(self._first + turn) % count] for turn in range(count)]
        for law in sorted(turned, key=lambda each: self._had[each.name]):
            if law.made_of is not None and (made := law.made_of(trial.claims, scenario)) is not None:
                self._let(law, trial, made)
                self._had[law.name] += 1
                return

    def _judge(self, trial: Trial, judged: set[Scenario]) -> None:
        """Check every law of one run on each run of the implementation that was not judged yet."""
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
