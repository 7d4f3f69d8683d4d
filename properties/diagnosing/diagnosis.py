"""Experiments on a failure that stands, and all that they have told, in one object for the reports."""

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
    """All that is known of a failure. If it is no program of events, for example a call, only the failure itself.

    ``core``: the least of its program that goes wrong in the same manner by itself, if it always does. ``expected``:
    what must come out; None where the oracle does not know. ``recorded``: a run with what went into its collectives;
    ``trained``: by rank, its collectives since construction, or None where these are not known.
    ``shares``: the contributions in the first wrong value, and ``guess``, what would give just such values, in words;
    neither where it cannot be told. ``starts_later``: whether all is right if ranks need to be equal from the first
    forward on only. ``hangs_on``: the
    claims that nobody has declared, and without which nothing goes wrong in this way.
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
        """The way in which the law was broken."""
        return self.failure.broken

    @property
    def always(self) -> bool:
        """True if it was seen in every run."""
        failed, runs = self.failure.seen
        return failed == runs


def diagnose(trial: Trial, failure: Failure, to_the_core: bool = True) -> Diagnosis:
    """Runs a failure's program again, whole and in parts. Not ``to_the_core``: without looking for that, which takes
    the most runs.
    """
    broken, scenario = failure.broken, failure.broken.scenario
    found = Diagnosis(failure, broken.outcome)
    if not isinstance(scenario, Scenario):
        return found
    least = core(trial, failure) if to_the_core and found.always else None
    expected = _expected(trial, scenario)
    later = starts_later(trial, broken)
    recorded, trained = (broken.outcome, None) if took_the_clock(broken) or not found.always else _run(trial, broken)
    # Where it came from is asked with other data, run by run; what another model contributes is no share of this one's.
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
    """The run with what went into its collectives, without looks at shards; and by rank all collectives since
    construction, None if a rank did not come to its end. For what costs much to run again, or might end otherwise, the
    run that was seen will do.
    """
    outcome = trial.outcome(job(trial.implementation.name, broken.scenario, True, broken.choices))
    outcome = as_a_world(outcome, broken.scenario)
    ended = all(report.result is not None for report in outcome)
    trained = tuple(without(report, "built").collectives for report in outcome) if ended else None
    return tuple(without(report, "looks") for report in outcome), trained


def _origin(trial: Trial, broken: LawBroken) -> tuple[tuple[Share, ...], str | None]:
    """Its shares, and a guess. Neither off the exact tier."""
    shares: tuple[Share, ...] = ()
    assert broken.difference is not None
    try:
        shares = tuple(shares_of(trial, broken, broken.difference) or ())
        return shares, guess(broken, trial.expected(broken.scenario))
    except (Inexact, UnsatisfiedAssumption):
        return shares, None
