"""Experiments on a confirmed failure, with all their results in one object for the reports."""

from dataclasses import dataclass

from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.expectation import Expectation
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.properties.diagnosing.claims import hangs_on
from lockstep.properties.diagnosing.core import core
from lockstep.properties.diagnosing.guess import guess
from lockstep.properties.diagnosing.shares import Share, shares_of
from lockstep.properties.diagnosing.starting import starts_later
from lockstep.properties.members import as_a_world
from lockstep.properties.searching.search import Failure, took_the_clock
from lockstep.properties.trial import Trial, job, without
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import Collective, Outcome


@dataclass(frozen=True)
class Diagnosis:
    """All results on a failure. If it has no program of events, for example for a call, only the failure itself.

    - ``recorded``: a run with the inputs of its collectives.
    - ``trained``: by rank, its collectives since construction; None if they are not known.
    - ``core``: the smallest part of its program that fails in the same manner without the law, if it always fails.
    - ``expected``: the expectation; None if the oracle does not know it.
    - ``shares``: the contributions in the first wrong value; empty if they cannot be found.
    - ``guess``: a cause that would give just such values, in words; None if there is none.
    - ``starts_later``: everything is right if ranks need to be equal only from the first forward on.
    - ``hangs_on``: undeclared claims without which nothing fails in this manner.
    """

    failure: Failure
    recorded: Outcome
    trained: tuple[tuple[Collective, ...], ...] | None = None
    core: Scenario | None = None
    expected: Expectation | None = None
    shares: tuple[Share, ...] = ()
    guess: str | None = None
    starts_later: bool = False
    hangs_on: tuple[str, ...] = ()

    @property
    def broken(self) -> LawBroken:
        """The way in which the law is broken."""
        return self.failure.broken

    @property
    def always(self) -> bool:
        """True if it occurred in every run."""
        failed, runs = self.failure.seen
        return failed == runs


def diagnose(trial: Trial, failure: Failure, to_the_core: bool = True) -> Diagnosis:
    """Run a failure's program again, whole and in parts. ``to_the_core``: also find its core, which takes most runs."""
    broken, scenario = failure.broken, failure.broken.scenario
    found = Diagnosis(failure, broken.outcome)
    if not isinstance(scenario, Scenario):
        return found
    least = core(trial, failure) if to_the_core and found.always else None
    expected = _expected(trial, scenario)
    later = starts_later(trial, broken)
    recorded, trained = (broken.outcome, None) if took_the_clock(broken) or not found.always else _run(trial, broken)
    # The origin is found by runs with other data. Contributions of another model are no shares of this one.
    another = scenario.caller.beside or scenario.caller.joint
    traced = broken.difference is not None and found.always and not another
    shares, guessed = _origin(trial, broken) if traced else ((), None)
    needed = tuple(hangs_on(trial, broken, scenario if least is None else least))
    return Diagnosis(failure, recorded, trained, least, expected, shares, guessed, later, needed)


def _expected(trial: Trial, scenario: Scenario) -> Expectation | None:
    try:
        return trial.expected(scenario)
    except (Inexact, UnsatisfiedAssumption):
        return None


def _run(trial: Trial, broken: LawBroken) -> tuple[Outcome, tuple[tuple[Collective, ...], ...] | None]:
    """A run with the inputs of its collectives, without looks at shards; and by rank all collectives since
    construction, None if a rank did not come to its end.

    The original run is used if another one would cost much or might end differently.
    """
    outcome = trial.outcome(job(trial.implementation.name, broken.scenario, True, broken.choices))
    outcome = as_a_world(outcome, broken.scenario)
    ended = all(report.result is not None for report in outcome)
    trained = tuple(without(report, "built").collectives for report in outcome) if ended else None
    return tuple(without(report, "looks") for report in outcome), trained


def _origin(trial: Trial, broken: LawBroken) -> tuple[tuple[Share, ...], str | None]:
    """The shares and a guess. Both are empty if values are not exact."""
    shares: tuple[Share, ...] = ()
    assert broken.difference is not None
    try:
        shares = tuple(shares_of(trial, broken, broken.difference) or ())
        return shares, guess(broken, trial.expected(broken.scenario))
    except (Inexact, UnsatisfiedAssumption):
        return shares, None
