"""The decorator that makes a pytest test of a check of kernels, and the search for the smallest case that fails."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from lockstep.properties.kernels import device
from lockstep.properties.kernels.script import script
from lockstep.properties.kernels.smaller import least
from lockstep.properties.kernels.under_test import Kernels
from lockstep.properties.law import as_sentence
from lockstep.properties.reports.matrix import PROPERTY
from lockstep.properties.reports.paragraphs import entry
from lockstep.properties.strategies.independent import INDEPENDENT
from lockstep.properties.verdict import ERROR_IN_LOCKSTEP, HOLDS, NOT_CLAIMED, WRONG

Ends = dict[str, AssertionError | None]  # the error of each case, or None
INTERPRETED = 10  # the factor by which examples are fewer if kernels are interpreted, at tens of milliseconds a block


def kernel_law(
    draws: st.SearchStrategy[Any], needs: Mapping[str, tuple[str, ...]], always: Sequence[Any] = (), some: bool = False
) -> Callable[[Callable[[Kernels, Any], None]], Callable[..., None]]:
    """Make a pytest test of a check. ``needs``: the functions that it is about, with their arguments.

    ``always``: cases tried before anything is drawn, because draws would rarely hit them. ``some``: one of the
    arguments is enough, and the check leaves out the others (`Kernels.claimed`).
    """
    enough = any if some else all

    def decorate(check: Callable[[Kernels, Any], None]) -> Callable[..., None]:
        def test(kernels: Kernels, record: Callable[[str, Any], None]) -> None:
            law = as_sentence(check.__name__)
            filed: dict[str, Any] = {"number": "P17", "law": law, "implementation": kernels.name}
            lacking = [
                function
                for function, arguments in needs.items()
                if function not in kernels.functions or not enough(x in kernels.functions[function] for x in arguments)
            ]
            if lacking:
                record(PROPERTY, {**filed, "world": "", "verdict": NOT_CLAIMED})
                return
            verdict, message, ends = ERROR_IN_LOCKSTEP, "", Ends()
            try:
                hold(check, kernels, draws, always, ends=ends)
                verdict = HOLDS
            except AssertionError as error:
                verdict, message = WRONG, "\n".join(story(kernels, law, error))
                case = _case_of(error)
                told = {"verdict": WRONG, "report": message, "script": "", "scenario": case, "cause": f"{law}: {case}"}
                filed["failures"] = [{**told, "plain": True, "size": len(case)}]
            finally:
                ended = {"world": "one process", "verdict": verdict, "examples": len(ends)}
                record(PROPERTY, {**filed, **ended})
            if message:
                pytest.fail(message, pytrace=False)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        # Read by the plugin and the tests of faults.
        test.kernel_law = (check, draws, always)  # type: ignore[attr-defined]
        return test

    return decorate


def story(kernels: Kernels, law: str, error: AssertionError) -> list[str]:
    """The report of a failure, line by line."""
    result, *details = str(error).splitlines() or [""]
    words = [f"{kernels.name.rpartition(':')[2]} breaks P17: wrong", ""]
    words += [*entry("The law", law), *entry("Result", result), *details]
    words += ["", *entry("Case", _case_of(error))]
    lines = script(kernels.name, kernels.functions, getattr(error, "call", {}))
    return [*words, "", "As a script:", *(f"    {line}".rstrip() for line in lines)] if lines else words


def _case_of(error: AssertionError) -> str:
    """The case, from the first note. Further notes are Hypothesis' and repeat it at length."""
    return next(iter(getattr(error, "__notes__", [])), "")


def hold(
    check: Callable[[Kernels, Any], None],
    kernels: Kernels,
    draws: st.SearchStrategy[Any],
    always: Sequence[Any] = (),
    shrink: bool = True,
    ends: Ends | None = None,
) -> None:
    """Search, shrink, and raise the smallest failure. Without ``shrink``, raise the same failure in every run.

    ``ends``: filled with the result of each case. A repeated case keeps its result, even if chance decided it.
    """
    known, failing = Ends() if ends is None else ends, list[Any]()
    profile = settings()
    wanted = settings(
        max_examples=max(
            1, (kernels.examples or profile.max_examples) // (INTERPRETED if device.choose() == "interpreted" else 1)
        ),
        backend=INDEPENDENT,
        derandomize=profile.derandomize or not shrink,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])),
        suppress_health_check=list(HealthCheck),
    )

    def end(drawn: Any) -> AssertionError | None:
        case = repr(drawn)
        if case not in known:
            known[case] = _wrong(check, kernels, drawn)
        return known[case]

    def examine(drawn: Any) -> None:
        if (error := end(drawn)) is not None:
            failing[:] = [drawn]
            raise error

    search = given(draws)(examine)
    for case in reversed(always):
        search = example(case)(search)
    try:
        wanted(search)()
    except AssertionError as error:
        if not shrink or not failing:
            raise
        raise (end(least(failing[0], lambda case: end(case) is not None)) or error) from None


def _wrong(check: Callable[[Kernels, Any], None], kernels: Kernels, drawn: Any) -> AssertionError | None:
    """The error in a case, with a note that names the case."""
    try:
        check(kernels, drawn)
    except AssertionError as error:
        error.add_note(repr(drawn))
        error.call = dict(kernels.called)  # type: ignore[attr-defined]  # used by `script`
        return error
    return None
