"""The search for a law's smallest counterexample."""

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, currently_in_test_context, given, seed, settings
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Unsatisfiable, UnsatisfiedAssumption
from hypothesis.strategies import SearchStrategy

from lockstep.properties.errors import alike
from lockstep.properties.law import Law
from lockstep.properties.searching.remembered import Remembered
from lockstep.properties.strategies.independent import INDEPENDENT
from lockstep.properties.trial import ENDED, SetAside, Trial
from lockstep.properties.verdict import LawBroken, NotRunnableHere, Refused
from lockstep.worlds.contract import errors_of

# The limits for shrinking a failure if each example costs real time: on real processes, or if a simulated world hangs.
# With the runs of `properties.diagnosing`, a failure has 20 runs.
COSTLY_RUNS, COSTLY_SECONDS = 8, 30.0
# Seconds. Once an example has hung for the world's whole limit, smaller ones count as hanging after this time.
SHRINK_LIMIT = 3.0
# The number of kinds of refusals, by message, of which one example is run again in fresh processes.
KINDS = 3
# At most so many programs are set aside for each one that is wanted. Some laws draw hardly anything else.
MOST_ASIDE = 3
# If none of so many examples can run on the world, no more are tried, because each one has cost fresh processes.
UNRUNNABLE = 10


@dataclass(frozen=True)
class Failure:
    """A shrunk counterexample: the drawn program, how it failed, and its result on another world (``elsewhere``).

    ``seen``: the numbers of failed runs and of all runs. ``simulated``: the failure was seen on a real world and shrunk
    on the simulated one. ``found``: the original failure on the real world, or the one that hung for the world's whole
    limit before shrinking used a shorter one.
    """

    drawn: Any
    broken: LawBroken
    elsewhere: str = ""
    seen: tuple[int, int] = (1, 1)
    simulated: bool = False
    found: "Failure | None" = None

    @property
    def verdict(self) -> str:
        """The verdict in words, with the number of failing runs unless every run failed."""
        failed, runs = self.seen
        return self.broken.verdict + (f" in {failed} of {runs} runs" if failed < runs else "")


@dataclass
class Search:
    """The result of searching with a law: failures, each kind shrunk; the number of examples; the refusals.

    ``refused``: the last example of each kind of refusal, by message. ``stale``: true if one of them is refused only
    because of state that earlier examples left in their processes.
    """

    failures: list[Failure] = field(default_factory=list)
    examples: int = 0
    refusals: list[Refused] = field(default_factory=list)
    refused: dict[str, Any] = field(default_factory=dict)
    stale: bool = False

    def add(self, more: "Search") -> None:
        """Add the result of further examples."""
        self.failures += more.failures
        self.examples += more.examples
        self.refusals += more.refusals
        self.refused |= more.refused
        self.stale = self.stale or more.stale


class _Examination:
    """The check of the examples of one search, in the order in which they are drawn.

    ``trial`` moves to the simulated world if a failure shows there too, so that it can be shrunk there. ``failures``:
    by the repr of the drawn example, None if the law holds. So a scenario has one verdict in a search, even if its
    outcome depends on a clock or on chance.
    """

    def __init__(self, law: Law, trial: Trial, only: type[LawBroken], wanted: int) -> None:
        self.trial, self.moved, self.result = trial, False, Search()
        self.left_out, self._most_left_out = 0, MOST_ASIDE * wanted
        self.failures: dict[str, Failure | None] = {}
        self.costly_runs, self._costly_since = 0, 0.0
        self._law, self._only = law, only
        self._hung: Failure | None = None  # the failure that hung for the world's whole limit

    def examine(self, drawn: Any) -> None:
        """Check an example and raise LawBroken if it fails.

        Does nothing if costly examples have used up their runs, if no example can run, or if too many were set aside.
        """
        key = repr(drawn)
        if key not in self.failures:
            if self._costs_too_much() or self._never_runs() or self.left_out > self._most_left_out:
                return
            examples = self.result.examples
            try:
                if self.trial.aside is not None:
                    self.trial.aside(drawn)
                failure = self._failure(drawn)
                if failure is not None and self.trial.aside is not None:
                    self.trial.aside.excuse(self.trial, failure.broken)
                self.failures[key] = failure
            except SetAside:
                self.left_out, self.result.examples = self.left_out + 1, examples
                raise
        if (failure := self.failures[key]) is not None:
            raise failure.broken

    def of(self, *broken: BaseException) -> list[Failure]:
        """The failures that raised these exceptions. Those shrunk on sim also carry the failure of the real world."""
        failures = [failure for failure in self.failures.values() if failure]
        told = [failure for failure in failures if any(failure.broken is one for one in broken)]
        if not self.moved:
            return told
        found = next((failure.found for failure in failures if failure.found), None)
        return [replace(failure, simulated=True, found=found) for failure in told]

    def _costs_too_much(self) -> bool:
        late = time.monotonic() - self._costly_since > COSTLY_SECONDS
        return self.costly_runs > 0 and (self.costly_runs > COSTLY_RUNS or late)

    def _never_runs(self) -> bool:
        refusals = self.result.refusals
        return (
            len(refusals) == self.result.examples == UNRUNNABLE
            and all(isinstance(each, NotRunnableHere) for each in refusals)
            and not self.trial.witnessed[ENDED]
        )

    def _failure(self, drawn: Any) -> Failure | None:
        result, refusals = self.result, list[Refused]()
        result.examples += 1
        self.costly_runs += self.costly_runs > 0
        trial = replace(self.trial, limit=SHRINK_LIMIT) if self._hung else self.trial
        broken = how_broken(self._law, trial, drawn, refusals)
        result.refusals += refusals
        if broken is None:
            if refusals and not self.moved and not isinstance(refusals[0], NotRunnableHere):
                result.refused[alike(str(refusals[0]))] = drawn
            return None
        if not self.costly_runs and (simulated := _on_sim(self._law, self.trial, drawn)) is not None:
            (self.trial, there), self.moved = simulated, True
            failure = Failure(drawn, there, found=Failure(drawn, broken))
        else:
            failure = Failure(drawn, broken, found=self._hung if took_the_clock(broken) else None)
            if self._hung is None and took_the_clock(broken):
                self._hung = failure
            if not self.costly_runs and (self.trial.world.name != "sim" or self._hung):
                self.costly_runs, self._costly_since = 1, time.monotonic()
        return failure if isinstance(failure.broken, self._only) else None


def search(
    law: Law,
    trial: Trial,
    examples: int,
    seed_value: int | None = None,
    only: type[LawBroken] = LawBroken,
    database: ExampleDatabase | None = None,
    derandomize: bool = False,
    shrink: bool = True,
    draws: SearchStrategy[Any] | None = None,
) -> Search:
    """Draw examples, check the law on each, and shrink the failures. ``only``: the kind of failures that count.

    Without ``shrink``, the search ends at the first failure. ``draws`` replaces the law's own strategy. Failures on
    real processes are shrunk on the simulated world if the trial has one and they fail there too. If nothing can be
    drawn, the result has no examples.
    """
    examination = _Examination(law, trial, only, examples)
    result = examination.result
    remembered = None
    if database is not None and not derandomize:
        remembered = Remembered(database, f"{law.name} {trial.implementation.name} {trial.world.name} {only.__name__}")

    def examine(drawn: Any) -> None:
        examination.examine(drawn)

    run = settings(
        max_examples=examples,
        backend=INDEPENDENT,
        database=remembered,
        derandomize=derandomize and seed_value is None,
        deadline=None,
        verbosity=Verbosity.quiet,
        print_blob=False,
        # If only one kind counts, only its smallest failure is reported. On real processes the few runs serve to shrink
        # one.
        report_multiple_bugs=only is LawBroken and trial.world.name == "sim",
        phases=(Phase.reuse, Phase.generate, *([Phase.shrink] if shrink else [])),
        suppress_health_check=list(HealthCheck),
    )(given(law.draws(trial.claims) if draws is None else draws)(examine))
    if seed_value is not None:
        run = seed(seed_value)(run)
    try:
        run()
    except Unsatisfiable:
        result.examples = 0
    except LawBroken as broken:
        result.failures = examination.of(broken)
    except BaseExceptionGroup as several:
        broken_ones, rest = several.split(LawBroken)
        if rest is not None or broken_ones is None:
            raise
        result.failures = examination.of(*broken_ones.exceptions)
    # A failure that was shrunk within a limited number of runs need not be the smallest.
    if remembered is not None and not examination.costly_runs:
        remembered.keep()
    return result


def _on_sim(law: Law, trial: Trial, drawn: Any) -> tuple[Trial, LawBroken] | None:
    """The simulated trial and its failure, if an example that fails on a real world fails there too; else None.

    The failure may be of another kind. A hang on a real world is a deadlock or a mismatch on sim, which is seen at
    once.
    """
    if trial.sim is None or trial.world.name == "sim":
        return None
    simulated = replace(trial, world=trial.sim(), confirm_on=None, limit=SHRINK_LIMIT)
    there = how_broken(law, simulated, drawn, [])
    return None if there is None or took_the_clock(there) else (simulated, there)


def how_broken(law: Law, trial: Trial, drawn: Any, refusals: list[Refused]) -> LawBroken | None:
    """The failure of the law on an example, or None.

    It is returned so that the caller raises it outside any handler. Hypothesis tells failures apart also by the
    exception during whose handling they were raised.
    """
    try:
        law.check(trial, drawn)
    except Refused as refused:
        refusals.append(refused)
    except LawBroken as broken:
        return broken
    except UnsatisfiedAssumption:  # the oracle cannot decide; outside a search, there is no other example to draw
        if currently_in_test_context():
            raise
    return None


def refused_for_the_past(law: Law, trial: Trial, found: Search) -> bool:
    """True if an example that was refused is not refused in fresh processes."""
    fresh = replace(trial, apart=True, witnessed=Counter())
    for drawn in list(found.refused.values())[-KINDS:]:
        refusals: list[Refused] = []
        how_broken(law, fresh, drawn, refusals)
        if not refusals:
            return True
    return False


def took_the_clock(broken: LawBroken) -> bool:
    """True if the example was ended by a time limit or by the death of a process."""
    return any(error.kind in ("timeout", "died") for error in errors_of(broken.outcome).values())
