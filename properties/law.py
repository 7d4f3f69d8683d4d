"""A law: what it says, what it draws, how it is checked; and the search for its smallest counterexample."""

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from properties.claims import Claims
from properties.matrix import PROPERTY
from properties.trial import Trial
from properties.verdict import LawBroken, Refused, SilentlyWrong

# Where an example costs real time (real processes; a simulated world that hangs), a failure is shrunk in at most so
# many runs and so many seconds.
COSTLY_RUNS, COSTLY_SECONDS = 20, 30.0
# Seconds after which a smaller example counts as hanging too, once one has hung for the world's whole limit.
SHRINK_LIMIT = 3.0
# Seconds on gloo for a failure that the simulated world has shown: it only says what a real backend makes of it.
CONFIRM_LIMIT = 5.0


@dataclass(frozen=True)
class Law:
    """``check(trial, drawn)`` raises a LawBroken where the law does not hold.

    ``witnesses``: what must take place in some example, or the law has shown nothing; with an example of each.
    """

    number: str
    name: str
    says: str
    draws: Callable[[Claims], st.SearchStrategy[Any]]
    check: Callable[[Trial, Any], None]
    needs: Callable[[Claims], bool]
    witnesses: Mapping[str, Any]


def law(
    number: str,
    draws: Callable[[Claims], st.SearchStrategy[Any]],
    needs: Callable[[Claims], bool] = lambda claims: True,
    witnesses: Mapping[str, Any] | None = None,
) -> Callable[[Callable[[Trial, Any], None]], Callable[..., None]]:
    """Makes a pytest test of a check. It runs for each implementation and world that `conftest` gives it.

    ``number``: of the law in the catalogue; ``needs``: which claims it is tied to; ``witnesses``: see `Law`.
    """

    def decorate(check: Callable[[Trial, Any], None]) -> Callable[..., None]:
        made = Law(number, check.__name__, check.__doc__ or "", draws, check, needs, witnesses or {})

        def test(trial: Trial, record_property: Callable[[str, Any], None]) -> None:
            hold(made, trial, record_property)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.law = made  # type: ignore[attr-defined]  # read by conftest
        return test

    return decorate


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


def hold(law: Law, trial: Trial, record: Callable[[str, Any], None]) -> None:
    """The body of a law's test: passes, or fails with a report for people. Files the verdict for the matrix."""
    trial.witnessed.clear()
    profile = settings()
    examples = profile.max_examples if trial.world.name == "sim" else max(1, profile.max_examples // 10)
    options: Any = {"database": profile.database, "derandomize": profile.derandomize}
    found = search(law, trial, examples, **options)
    failures = found.failures
    loud = [failure.broken for failure in failures if not isinstance(failure.broken, SilentlyWrong)]
    if failures and len(loud) == len(failures) and not any(map(took_the_clock, loud)):
        # Silent corruption is the worst there is: look for it behind the failures that announce themselves.
        failures = failures + search(law, trial, examples, only=SilentlyWrong, **options).failures
    failures = [confirmed for failure in failures if (confirmed := confirm(law, trial, failure)) is not None]
    verdict, message = "holds", ""
    if failures:
        from properties.report import report  # needs most of the suite; a law that holds does not

        verdict = " and ".join(dict.fromkeys(failure.broken.verdict for failure in failures))
        message = "\n\n".join(report(law, trial, failure) for failure in failures)
    elif found.failures:
        verdict = "sim only, no failure"
        warnings.warn(f"{trial.implementation.name}: {sentence(law)}: {SIM_ONLY}", stacklevel=2)
    elif not trial.witnessed["ran to its end"]:
        verdict = "refuses"
        refused = f"{trial.implementation.name} refused all {found.examples} examples"
        message = f"{refused}, so nothing was checked: {found.refusals[0]}"
    elif unseen := unwitnessed(law, trial):
        verdict = "shows nothing"
        words = f"in {found.examples} examples it never happened that {' or that '.join(unseen)}"
        warnings.warn(f"{trial.implementation.name}: {sentence(law)}: {words}", stacklevel=2)
    filed = {"number": law.number, "law": sentence(law), "implementation": trial.implementation.name}
    record(PROPERTY, {**filed, "world": trial.world.name, "verdict": verdict})
    if message:
        pytest.fail(message, pytrace=False)


def unwitnessed(law: Law, trial: Trial) -> list[str]:
    """What must have taken place for the law to have shown something, and has not, not even in its own example.

    Raises LawBroken where the law fails on that example.
    """
    for witness, example in law.witnesses.items():
        if not trial.witnessed[witness]:
            with contextlib.suppress(Refused):
                law.check(trial, example)
    return [witness for witness in law.witnesses if not trial.witnessed[witness]]


SIM_ONLY = (
    "fails on the simulated world, passes on gloo, and no timing of its collectives explains it. Simulated ranks share "
    "one process: state of the process (class attributes, singletons, threads) looks wrong there though it is right"
)


def confirm(law: Law, trial: Trial, failure: Failure) -> Failure | None:
    """Runs a failure of the simulated world again on gloo, and says what it does there.

    None: it is an artefact of simulating ranks in one process, and no failure. A failure that gloo does not show but
    that is gone when collectives finish at once is a race: allowed by the contract, not seen this time.
    """
    if trial.world.name != "sim" or trial.confirm_on is None:
        return failure
    real = replace(trial, world=trial.confirm_on(), confirm_on=None, limit=CONFIRM_LIMIT)
    try:
        law.check(real, failure.drawn)
    except Refused as refused:
        return replace(failure, elsewhere=f"gloo refuses: {refused}")
    except LawBroken as broken:
        if failure.broken.same_as(broken) and broken.difference is not None:
            ranks = failure.broken.scenario.world_size
            return replace(failure, elsewhere=f"confirmed: {ranks} real processes on gloo give the same wrong bits.")
        return replace(failure, elsewhere=f"gloo {broken.verdict}: {broken.headline}{printed(broken)}")
    at_once = replace(trial, at_once=True)
    try:
        law.check(at_once, failure.drawn)
    except (Refused, LawBroken):
        return None
    words = "gloo gave the right values this time, and so does sim if collectives finish at once: a race."
    return replace(failure, elsewhere=words)


def law_of(test: Callable[..., None]) -> Law:
    """The law that a test made by `law` holds."""
    found: Law = test.law  # type: ignore[attr-defined]
    return found


def sentence(law: Law) -> str:
    """The law's name as words."""
    return law.name.removeprefix("test_").replace("_", " ")


def printed(broken: LawBroken) -> str:
    """What the ranks that died last printed, on one line; empty where none did."""
    for report in broken.outcome:
        if report.error is not None and report.error.kind == "died" and report.error.details.strip():
            return f" It printed: {' '.join(report.error.details.split())[-300:]}"
    return ""
