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
# many runs and so many seconds.
COSTLY_RUNS, COSTLY_SECONDS = 20, 30.0
# Seconds after which a smaller example counts as hanging too, once one has hung for the world's whole limit.
SHRINK_LIMIT = 3.0


@dataclass(frozen=True)
class Failure:
    """A shrunk counterexample: what was drawn, how it ended, and what it does on another world (`elsewhere`)."""

    drawn: Any
    broken: LawBroken
    elsewhere: str = ""


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
    """Draws examples, checks the law on each, and shrinks what fails; ``only`` failures of that kind count."""
    result = Search()
    known: dict[str, Failure] = {}
    costly_runs, costly_since, hung = 0, 0.0, False

    def examine(drawn: Any) -> None:
        nonlocal costly_runs, costly_since, hung
        key = repr(drawn)
        if key in known:  # the same scenario has the same verdict, also where a clock or real processes gave it
            raise known[key].broken
        if costly_runs and (costly_runs > COSTLY_RUNS or time.monotonic() - costly_since > COSTLY_SECONDS):
            return
        result.examples += 1
        costly_runs += costly_runs > 0
        try:
            law.check(replace(trial, limit=SHRINK_LIMIT) if hung else trial, drawn)
        except Refused as refused:
            result.refusals.append(str(refused))
        except LawBroken as broken:
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
        result.failures = [failure for failure in known.values() if failure.broken is broken]
    except BaseExceptionGroup as several:
        broken_ones, rest = several.split(LawBroken)
        if rest is not None or broken_ones is None:
            raise
        result.failures = [failure for failure in known.values() if failure.broken in broken_ones.exceptions]
    return result


def took_the_clock(broken: LawBroken) -> bool:
    """Whether only a clock or the death of a process ended the example."""
    return any(report.error is not None and report.error.kind in ("timeout", "died") for report in broken.outcome)
