"""Check a law with known defects set aside. A failure becomes a new defect, and the search goes on without it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lockstep.properties.defects.aside import Aside
from lockstep.properties.defects.defect import Defect
from lockstep.properties.defects.ledger import Ledger
from lockstep.properties.law import Law, sentence
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.unbroken import without_failure
from lockstep.properties.searching.search import Failure, Search
from lockstep.properties.searching.witnesses import unwitnessed
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import APART, BROKEN, HOLDS, IMPOSSIBLE, SHOWS_NOTHING, SIM_ONLY, LawBroken, listed

MOST_DEFECTS = 12  # under one law; after these, the search for more ends


def tell_nobody(defect: Defect) -> None:
    """Do not report a new defect."""


@dataclass(frozen=True)
class Docket:
    """The link from a law to the defects of a run: the run's ``ledger``, and the law's ``place`` in the run.

    ``tell`` reports each new defect at once.
    """

    ledger: Ledger = field(default_factory=Ledger)
    place: int = 0
    tell: Callable[[Defect], None] = tell_nobody

    def known(self, trial: Trial) -> tuple[Defect, ...]:
        """The defects of an implementation that are known so far."""
        return self.ledger.defects(trial.implementation.name)


@dataclass
class Ending:
    """The end of a law: its verdict, the reason for a bad one, and the data filed beside it."""

    verdict: str
    words: str = ""
    search: Search = field(default_factory=Search)
    broken_by: list[Defect] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    found: list[Defect] = field(default_factory=list)

    @property
    def filed(self) -> dict[str, Any]:
        """The data filed beside the verdict, see `properties.verdict`."""
        told: dict[str, Any] = {}
        if self.broken_by:
            told["broken_by"] = [each.id for each in self.broken_by]
            told["failures"] = [{**face, "defect": each.id} for each in self.broken_by for face in each.faces]
        if left := {name: count for name, count in self.left_out.items() if count}:
            told["left_out"] = left
        if self.found:
            told["defects"] = [each.filed for each in self.found]
        return told


Searched = Callable[[Law, Trial, Callable[[Law, Trial], Search]], tuple[Trial, Search]]


def hold_apart(law: Law, trial: Trial, budget: Budget, docket: Docket, searched: Searched) -> tuple[Trial, Ending]:
    """Search until the law holds with the known defects set aside, or until nothing is left to draw.

    ``searched`` runs a search and repeats it if a failure may be an artefact, see `properties.running.hold`. Returns
    the trial used at the end, and the ending.
    """
    name, ledger = trial.implementation.name, docket.ledger
    ending = Ending(HOLDS)
    artefact = False
    ledger.wait_to_begin(docket.place)
    while True:
        known = ledger.defects(name)
        aside = Aside(known, law, trial.claims)
        ending.left_out = aside.left_out
        if stopped := ending_at_once(aside):
            break
        trial = replace(trial, aside=aside, witnessed=Counter())
        draws = aside.draws()
        trial, found = searched(law, trial, partial(budget.spend, shrink=False, draws=draws))
        ending.search = found
        if not found.failures and (own := _own_example(law, trial)) is not None:
            found.failures = [own]
        if not found.failures or artefact or len(ending.broken_by) >= MOST_DEFECTS:
            break
        ledger.wait_to_judge(docket.place)
        if ledger.defects(name) != known:
            continue

        from lockstep.properties.running.judging import judged

        defect = judged(law, trial, budget, ledger, found.failures[0], draws)
        if defect is None:
            artefact = True
            break
        if defect.id not in {each.id for each in known}:
            ending.found.append(defect)
            docket.tell(defect)
        if defect.id not in {each.id for each in ending.broken_by}:
            ending.broken_by.append(defect)
        elif defect in known or not any(cause.needs for cause in defect.causes):
            break  # nothing more is set aside than before
        if not all(cause.needs for cause in defect.causes):
            break  # it shows in every program that this law draws
    if stopped and not ending.broken_by:
        ending.verdict, ending.words = f"{IMPOSSIBLE}: {stopped}", stopped
        return trial, ending
    if not stopped:
        aside.count_undrawn(trial.claims, ending.search.examples)
    _conclude(law, trial, ending, artefact)
    return trial, ending


def ending_at_once(aside: Aside) -> str:
    """The reason why known defects leave nothing to check for a law; empty if they leave something."""
    for defect in aside.defects:
        if defect.stops:
            return f"{defect.id} breaks the plainest program"
    return f"{taken} breaks every program that it needs" if (taken := aside.takes_all) else ""


def _own_example(law: Law, trial: Trial) -> Failure | None:
    """The failure of the law on its own example.

    The example is tried only if no other one shows what the law is about.
    """
    if not trial.witnessed[ENDED]:
        return None
    try:
        unwitnessed(law, trial)
    except LawBroken as broken:
        return Failure(None, broken)
    return None


def _conclude(law: Law, trial: Trial, ending: Ending, artefact: bool) -> None:
    """Set the verdict of a law that has ended."""
    if ending.broken_by:
        ending.verdict = f"{BROKEN}{listed(each.id for each in ending.broken_by)}"
        ending.words = "\n".join(f"{sentence(law)}: broken by {each.id}, {each.words()}" for each in ending.broken_by)
        return
    left = [name for name, count in ending.left_out.items() if count]
    ending.search.failures = ending.search.failures if artefact else []
    unseen = unwitnessed(law, trial) if trial.witnessed[ENDED] and not artefact else []
    ending.verdict, ending.words = without_failure(trial, ending.search, unseen)
    if artefact:
        ending.verdict = SIM_ONLY
    elif ending.verdict == SHOWS_NOTHING and left:
        ending.words = f"{listed(left)} break{'s' * (len(left) == 1)} every program that it needs"
        ending.verdict = f"{IMPOSSIBLE}: {ending.words}"
    elif ending.verdict == HOLDS and left:
        ending.verdict = f"{APART}{listed(left)}"
