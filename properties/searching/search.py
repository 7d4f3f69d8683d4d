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

# Where an example costs real time (real processes; a simulated world that hangs), a failure is shrunk in at most so
# many runs and so many seconds; with those of `properties.diagnosing` they are 20.
COSTLY_RUNS, COSTLY_SECONDS = 8, 30.0
# Seconds after which a smaller example counts as hanging too, once one has hung for the world's whole limit.
SHRINK_LIMIT = 3.0
# Of how many kinds of refusals, by what they say, an example is run again in fresh processes.
KINDS = 3
# So many times as many programs may be set aside as are wanted: of a law that draws little else.
MOST_ASIDE = 3
# After so many examples of which none can be run on its world, no more are tried: each has cost fresh processes.
UNRUNNABLE = 10


@dataclass(frozen=True)
class Failure:
    """A shrunk counterexample: what was drawn, how it ended, and what it does on another world (`elsewhere`).

    ``seen``: in how many runs of how many it failed. ``simulated``: a real world's, shrunk on the simulated one, and
    ``found`` is what the real one had shown; or what had hung for the world's whole limit before shrinking took less.
    """

    drawn: Any
    broken: LawBroken
    elsewhere: str = ""
    seen: tuple[int, int] = (1, 1)
    simulated: bool = False
    found: "Failure | None" = None

    @property
    def verdict(self) -> str:
        """In words, with how often it was seen, unless that is always."""
        failed, runs = self.seen
        return self.broken.verdict + (f" in {failed} of {runs} runs" if failed < runs else "")


@dataclass
class Search:
    """The result of a law's examples: the failures, each kind shrunk; how many ran, and the refusals.

    ``refused``: the last example of each kind of refusal, by what it says. ``stale``: whether one of these is refused
    only for what earlier examples have left in its processes.
    """

    failures: list[Failure] = field(default_factory=list)
    examples: int = 0
    refusals: list[Refused] = field(default_factory=list)
    refused: dict[str, Any] = field(default_factory=dict)
    stale: bool = False

    def add(self, more: "Search") -> None:
        """Takes in what became of further examples."""
        self.failures += more.failures
        self.examples += more.examples
        self.refusals += more.refusals
        self.refused |= more.refused
        self.stale = self.stale or more.stale


class _Examination:
    """The examination of the examples of one search, drawn one after the other.

    ``trial`` moves to the simulated world where a failure shows there too, to be shrunk. ``failures`` are by what was
    drawn, None where the law holds: the same scenario has the same verdict, also where a clock, real processes or
    chance gave it.
    """

    def __init__(self, law: Law, trial: Trial, only: type[LawBroken], wanted: int) -> None:
        self.trial, self.moved, self.result = trial, False, Search()
        self.left_out, self._most_left_out = 0, MOST_ASIDE * wanted
        self.failures: dict[str, Failure | None] = {}
        self.costly_runs, self._costly_since = 0, 0.0
        self._law, self._only = law, only
        self._hung: Failure | None = None  # for the world's whole limit

    def examine(self, drawn: Any) -> None:
        """Raises LawBroken. Does nothing once an example that costs real time has had its runs, or if none can run."""
        key = repr(drawn)
        if key not in self.failures:
            if self._costs_too_much() or self._never_runs() or self.left_out > self._most_left_out:
                return
            examples = self.result.examples
            try:
                if self.trial.aside is not None:
                    self.trial.aside(drawn)
                self.failures[key] = self._failure(drawn)
            except SetAside:
                self.left_out, self.result.examples = self.left_out + 1, examples
                raise
        if (failure := self.failures[key]) is not None:
            raise failure.broken

    def of(self, *broken: BaseException) -> list[Failure]:
        """The failures that these are of. They know what the real world had shown, where they were shrunk on sim."""
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
    """Draws examples, checks the law on each, and shrinks what fails; ``only`` failures of that kind count.

    Without ``shrink`` the first failure ends it. ``draws``: in the place of what the law draws.

    What fails on real processes is shrunk on the simulated world, if the trial has one and it fails there too. Where
    nothing can be drawn, there are no examples.
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
        # Of one kind only the smallest is told; on real processes the runs there are go into making it small.
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
    # What was shrunk in so many runs and no more is not the smallest.
    if remembered is not None and not examination.costly_runs:
        remembered.keep()
    return result


def _on_sim(law: Law, trial: Trial, drawn: Any) -> tuple[Trial, LawBroken] | None:
    """For a failure on a real world: the trial on the simulated one, and how it fails there; None where it does not.

    It may fail in another way: what hangs on a real world is a deadlock or a mismatch there, seen at once.
    """
    if trial.sim is None or trial.world.name == "sim":
        return None
    simulated = replace(trial, world=trial.sim(), confirm_on=None, limit=SHRINK_LIMIT)
    there = how_broken(law, simulated, drawn, [])
    return None if there is None or took_the_clock(there) else (simulated, there)


def how_broken(law: Law, trial: Trial, drawn: Any, refusals: list[Refused]) -> LawBroken | None:
    """The failure of the law on an example, if it fails. Returned, so that it is raised outside any handler: Hypothesis
    tells failures apart by what they were raised in, too.
    """
    try:
        law.check(trial, drawn)
    except Refused as refused:
        refusals.append(refused)
    except LawBroken as broken:
        return broken
    except UnsatisfiedAssumption:  # the oracle cannot tell, and where nobody searches, nobody asks for another example
        if currently_in_test_context():
            raise
    return None


def refused_for_the_past(law: Law, trial: Trial, found: Search) -> bool:
    """True if an example that was refused is not in processes in which nothing has run before."""
    fresh = replace(trial, apart=True, witnessed=Counter())
    for drawn in list(found.refused.values())[-KINDS:]:
        refusals: list[Refused] = []
        how_broken(law, fresh, drawn, refusals)
        if not refusals:
            return True
    return False


def took_the_clock(broken: LawBroken) -> bool:
    """True if only a clock or the death of a process ended the example."""
    return any(error.kind in ("timeout", "died") for error in errors_of(broken.outcome).values())
