"""The search for a law's smallest counterexample."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.database import ExampleDatabase

from properties.law import Law
from properties.trial import Trial
from properties.verdict import LawBroken, Refused

# Where an example costs real time (real processes; a simulated world that hangs), a failure is shrunk in at most so
# many runs and so many seconds; with those of `repeat` they are 20.
COSTLY_RUNS, COSTLY_SECONDS = 12, 30.0
# How often, and for how many seconds at most, a shrunk failure is run again to see whether it always fails.
REPEATS, REPEAT_SECONDS = 8, 10.0
# Seconds after which a smaller example counts as hanging too, once one has hung for the world's whole limit.
SHRINK_LIMIT = 3.0


@dataclass(frozen=True)
class Failure:
    """A shrunk counterexample: what was drawn, how it ended, and what it does on another world (`elsewhere`).

    ``seen``: in how many runs of how many it failed. ``found``: the failure before it was shrunk on another world.
    """

    drawn: Any
    broken: LawBroken
    elsewhere: str = ""
    seen: tuple[int, int] = (1, 1)
    found: "Failure | None" = None

    @property
    def verdict(self) -> str:
        """In words, with how often it was seen, unless that is always."""
        failed, runs = self.seen
        return self.broken.verdict + (f" in {failed} of {runs} runs" if failed < runs else "")


@dataclass
class Search:
    """What became of a law's examples: the failures, each kind shrunk; how many ran, and what was refused."""

    failures: list[Failure] = field(default_factory=list)
    examples: int = 0
    refusals: list[str] = field(default_factory=list)


def search(
    law: Law,
    trial: Trial,
    examples: int,
    seed_value: int | None = None,
    only: type[LawBroken] = LawBroken,
    database: ExampleDatabase | None = None,
    derandomize: bool = False,
) -> Search:
    """Draws examples, checks the law on each, and shrinks what fails; ``only`` failures of that kind count.

    What fails on real processes is shrunk on the simulated world, if the trial has one and it fails there too.
    """
    result = Search()
    known: dict[str, Failure | None] = {}
    costly_runs, costly_since, hung = 0, 0.0, False
    first = trial

    def examine(drawn: Any) -> None:
        nonlocal costly_runs, costly_since, hung, trial
        key = repr(drawn)
        if key in known:  # the same scenario has the same verdict, also where a clock, real processes or chance gave it
            if (failure := known[key]) is not None:
                raise failure.broken
            return
        if costly_runs and (costly_runs > COSTLY_RUNS or time.monotonic() - costly_since > COSTLY_SECONDS):
            return
        result.examples += 1
        costly_runs += costly_runs > 0
        known[key] = None
        try:
            law.check(replace(trial, limit=SHRINK_LIMIT) if hung else trial, drawn)
        except Refused as refused:
            result.refusals.append(str(refused))
        except LawBroken as broken:
            simulated = _on_sim(law, trial, drawn, broken) if isinstance(broken, only) and not costly_runs else None
            if simulated is not None:
                trial = simulated[0]
                known[key] = Failure(drawn, simulated[1], found=Failure(drawn, broken))
                raise simulated[1] from None
            hung = hung or took_the_clock(broken)
            if costly_runs == 0 and (trial.world.name != "sim" or hung):
                costly_runs, costly_since = 1, time.monotonic()
            if isinstance(broken, only):
                known[key] = Failure(drawn, broken)
                raise

    run = settings(
        max_examples=examples,
        database=None if derandomize else database,
        derandomize=derandomize and seed_value is None,
        deadline=None,
        verbosity=Verbosity.quiet,
        print_blob=False,
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(given(law.draws(trial.claims))(examine))
    if seed_value is not None:
        run = seed(seed_value)(run)
    try:
        run()
    except LawBroken as broken:
        result.failures = [failure for failure in known.values() if failure and failure.broken is broken]
    except BaseExceptionGroup as several:
        broken_ones, rest = several.split(LawBroken)
        if rest is not None or broken_ones is None:
            raise
        ones = broken_ones.exceptions
        result.failures = [
            failure for failure in known.values() if failure and any(failure.broken is one for one in ones)
        ]
    if trial is not first:
        found = [failure.found for failure in known.values() if failure and failure.found]
        result.failures = [replace(failure, found=found[0]) for failure in result.failures]
    return result


def _on_sim(law: Law, trial: Trial, drawn: Any, broken: LawBroken) -> tuple[Trial, LawBroken] | None:
    """The trial on the simulated world, and how it ends there; None where it does not end in the same kind of failure.

    Not on what took a clock: hanging costs time on the simulated world too.
    """
    if trial.sim is None or trial.world.name == "sim" or took_the_clock(broken):
        return None
    simulated = replace(trial, world=trial.sim(), confirm_on=None, limit=SHRINK_LIMIT)
    try:
        law.check(simulated, drawn)
    except Refused:
        return None
    except LawBroken as there:
        return (simulated, there) if type(there) is type(broken) else None
    return None


def rerun(law: Law, trial: Trial, drawn: Any) -> tuple[list[LawBroken], int]:
    """Checks the law a few times on one example: how it was broken, and in how many runs."""
    failures: list[LawBroken] = []
    runs, since = 0, time.monotonic()
    while runs < REPEATS and time.monotonic() - since < REPEAT_SECONDS:
        runs += 1
        try:
            law.check(trial, drawn)
        except Refused:
            continue
        except LawBroken as broken:
            failures.append(broken)
    return failures, runs


def repeat(law: Law, trial: Trial, failure: Failure) -> Failure:
    """Runs a failure again on its world and counts in how many runs it is seen; the run that found it counts.

    One that was shrunk on the simulated world must fail on its own as well, or what was found there stands instead.
    """
    limit = SHRINK_LIMIT if took_the_clock(failure.broken) else trial.limit
    failures, runs = rerun(law, replace(trial, limit=limit), failure.drawn)
    if failure.found is None:
        return replace(failure, seen=(len(failures) + 1, runs + 1))
    if not failures:
        return repeat(law, trial, failure.found)
    return replace(failure, broken=failures[0], seen=(len(failures), runs))


def took_the_clock(broken: LawBroken) -> bool:
    """Whether only a clock or the death of a process ended the example."""
    return any(report.error is not None and report.error.kind in ("timeout", "died") for report in broken.outcome)
