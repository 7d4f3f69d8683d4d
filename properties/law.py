"""A law: what it says, what it draws, how it is checked; and the search for its smallest counterexample."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from properties.claims import Claims
from properties.matrix import PROPERTY
from properties.trial import Trial
from properties.verdict import LawBroken, Refused

# Where an example costs real time (real processes; a simulated world that hangs), a failure is shrunk in at most so many
# runs and so many seconds.
COSTLY_RUNS, COSTLY_SECONDS = 20, 90.0


@dataclass(frozen=True)
class Law:
    """``check(trial, drawn)`` raises a LawBroken where the law does not hold. ``witnesses`` must have taken place."""

    number: str
    name: str
    says: str
    draws: Callable[[Claims], st.SearchStrategy[Any]]
    check: Callable[[Trial, Any], None]
    needs: Callable[[Claims], bool]
    witnesses: tuple[str, ...]


def law(
    number: str,
    draws: Callable[[Claims], st.SearchStrategy[Any]],
    needs: Callable[[Claims], bool] = lambda claims: True,
    witnesses: tuple[str, ...] = (),
) -> Callable[[Callable[[Trial, Any], None]], Callable[..., None]]:
    """Makes a pytest test of a check. It runs for each implementation and world that `conftest` gives it.

    ``number``: of the law in the catalogue; ``needs``: which claims it is tied to; ``witnesses``: what must have taken
    place in some example, or the law passed vacuously.
    """

    def decorate(check: Callable[[Trial, Any], None]) -> Callable[..., None]:
        made = Law(number, check.__name__, check.__doc__ or "", draws, check, needs, witnesses)

        def test(trial: Trial, record_property: Callable[[str, Any], None]) -> None:
            hold(made, trial, record_property)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.law = made  # type: ignore[attr-defined]  # read by conftest
        return test

    return decorate


@dataclass
class Search:
    """What became of a law's examples: the failures, each kind shrunk; how many ran, and how many were refused."""

    failures: list[LawBroken] = field(default_factory=list)
    examples: int = 0
    refusals: list[str] = field(default_factory=list)


def search(
    law: Law,
    trial: Trial,
    examples: int,
    seed_value: int | None = None,
    database: ExampleDatabase | None = None,
    derandomize: bool = False,
) -> Search:
    """Draws examples, checks the law on each, and shrinks what fails."""
    result = Search()
    known: dict[str, LawBroken] = {}
    costly_runs, costly_since = 0, 0.0

    def examine(drawn: Any) -> None:
        nonlocal costly_runs, costly_since
        key = repr(drawn)
        if key in known:  # the same scenario has the same verdict, also where the world's clock gave it
            raise known[key]
        if costly_runs and (costly_runs > COSTLY_RUNS or time.monotonic() - costly_since > COSTLY_SECONDS):
            return
        result.examples += 1
        try:
            law.check(trial, drawn)
        except Refused as refused:
            result.refusals.append(str(refused))
        except LawBroken as broken:
            known[key] = broken
            if costly_runs == 0 and (trial.world.name != "sim" or _took_the_clock(broken)):
                costly_runs, costly_since = 1, time.monotonic()
            raise
        finally:
            costly_runs += costly_runs > 0

    run = settings(
        max_examples=examples,
        database=None if derandomize else database,
        derandomize=derandomize and seed_value is None,
        deadline=None,
        verbosity=Verbosity.quiet,
        print_blob=False,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(given(law.draws(trial.claims))(examine))
    if seed_value is not None:
        run = seed(seed_value)(run)
    try:
        run()
    except LawBroken as broken:
        result.failures = [broken]
    except BaseExceptionGroup as several:
        failures, rest = several.split(LawBroken)
        if rest is not None:
            raise rest from None
        assert failures is not None
        result.failures = list(failures.exceptions)  # type: ignore[arg-type]
    return result


def _took_the_clock(broken: LawBroken) -> bool:
    return any(report.error is not None and report.error.kind in ("timeout", "died") for report in broken.outcome)


def hold(law: Law, trial: Trial, record: Callable[[str, Any], None]) -> None:
    """The body of a law's test: passes, or fails with a report for people. Files the verdict for the matrix."""
    trial.witnessed.clear()
    profile = settings()
    examples = profile.max_examples if trial.world.name == "sim" else max(1, profile.max_examples // 10)
    found = search(law, trial, examples, None, profile.database, profile.derandomize)
    verdict, message = "holds", ""
    if found.failures:
        from properties.report import report  # needs most of the suite; a law that holds does not

        verdict = " and ".join(dict.fromkeys(broken.verdict for broken in found.failures))
        message = "\n\n".join(report(law, trial, broken) for broken in found.failures)
    elif not trial.witnessed["ran to its end"]:
        verdict = "refuses"
        message = f"{trial.implementation.name} refused all {found.examples} examples, so nothing was checked: {found.refusals[0]}"
    elif unseen := [witness for witness in law.witnesses if not trial.witnessed[witness]]:
        verdict = "passed vacuously"
        message = f"In {found.examples} examples it never happened that {' or that '.join(unseen)}, so nothing was shown."
    filed = {"number": law.number, "law": sentence(law), "implementation": trial.implementation.name}
    record(PROPERTY, {**filed, "world": trial.world.name, "verdict": verdict})
    if message:
        pytest.fail(message, pytrace=False)


def sentence(law: Law) -> str:
    """The law's name as words."""
    return law.name.removeprefix("test_").replace("_", " ")
