"""Kernels under test, and the decorator that makes a pytest test of a check of theirs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from oracle.intervals import Interval
from properties.kernels import device
from properties.kernels.cases import Case, Tensor
from properties.kernels.expected import Array, same
from properties.law import as_sentence
from properties.reports.matrix import PROPERTY
from properties.reports.paragraphs import entry
from properties.strategies.independent import INDEPENDENT
from worlds.contract import Job, RankError, World

Functions = Mapping[str, list[str]]
Ends = dict[str, AssertionError | None]  # what was wrong, if anything was, by case
INTERPRETED = 10  # how many times fewer examples run where kernels are interpreted, at tens of milliseconds a block
LIMIT = 60.0  # seconds for one case: a GPU compiles a kernel when it first meets a dtype


@dataclass(frozen=True)
class Kernels:
    """An implementation's kernels and the supervised process that they run in."""

    name: str
    world: World
    functions: Functions

    def run(self, operation: str, **request: Any) -> list[Array]:
        """The results of one case, as bytes. AssertionError where it fails, or writes where it must not."""
        data = {"implementation": self.name, "operation": operation, **request}
        (report,) = self.world.run(
            Job("properties.kernels.runner:run", json.dumps(data, default=plain), 1, limit=LIMIT)
        )
        if report.result is None:
            assert report.error is not None
            if device.choose() == "compiled":
                self.world.close()  # a GPU's context does not survive a wrong access
            raise AssertionError(f"{failed(operation, report.error)}\n{report.error.details[-1500:]}")
        if report.result["spilled"]:
            raise AssertionError(f"{operation} wrote {' and '.join(report.result['spilled'])}")
        out: list[Array] = report.result["out"]
        return out

    def claimed(self, function: str, case: Case) -> Case:
        """The case without a divisor, scale or coefficient for which the function has no argument."""
        lacking = {"divisor", "scale", "coefficient"} - set(self.functions[function])
        return replace(case, **{name: getattr(Case, name) for name in lacking})

    def claimed_of(self, function: str, case: Case, arguments: Sequence[str]) -> Case:
        """The same; where one of these arguments is lacking, all dtypes are alike: nobody said that it casts."""
        if not set(arguments) <= set(self.functions[function]):
            alike = tuple(replace(tensor, dtype=case.bucket.dtype) for tensor in case.tensors)
            case = replace(case, tensors=alike)
        return self.claimed(function, case)

    def run_case(self, operation: str, case: Case, **more: Any) -> list[Array]:
        """`run` on a case."""
        return self.run(operation, **{**asdict(case), **more})


def failed(operation: str, error: RankError) -> str:
    """In one line, what went wrong where a case ran; a kernel's call stands in the last note."""
    (first, *_) = error.message.splitlines() or [""]
    if error.kind == "raised" and error.notes:
        return f"{error.notes[-1]} raised {first}"
    return f"{operation}: {error.kind}: {first}"


def look_up_kernels(name: str, world: World) -> Kernels:
    """The named kernels. RuntimeError where they cannot be imported."""
    (report,) = world.run(Job("properties.kernels.runner:describe", json.dumps(name), 1, limit=LIMIT))
    if report.result is None:
        raise RuntimeError(f"--impl {name}: {report.error.message if report.error else 'no answer'}")
    return Kernels(name, world, report.result["functions"])


def must_equal(actual: list[Array], expected: list[Array], numbers: bool = True) -> None:
    """AssertionError that names the first result and element that differ."""
    for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        words = same(got.tobytes(), wanted, numbers and wanted.dtype.kind in "fV")
        if words:
            raise AssertionError(f"result {index}: {words}")


def must_lie(actual: list[Array], enclosures: list[Interval], like: list[Array]) -> None:
    """AssertionError that names the first result and element that is not in its interval, or has not the sign of what
    it is ``like``, which says its dtype too.
    """
    for index, (got, inside, model) in enumerate(zip(actual, enclosures, like, strict=True)):
        seen = np.frombuffer(got.tobytes(), model.dtype)
        if seen.shape != inside.low.shape:
            raise AssertionError(f"result {index}: {len(seen)} elements, and must be {inside.low.size}")
        wrong = ~inside.contains(seen) | (np.signbit(seen) != np.signbit(model))
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            words = f"{seen[first]}, and must lie in [{inside.low[first]}, {inside.high[first]}]"
            count = f"{wrong.sum()} of {wrong.size} are wrong"
            raise AssertionError(f"result {index}: element {first} is {words} ({count})")


def plain(value: Any) -> Any:
    """What JSON does not know."""
    return asdict(value) if isinstance(value, Tensor) else float(value)


def kernel_law(
    draws: st.SearchStrategy[Any], needs: Mapping[str, tuple[str, ...]], always: Sequence[Any] = (), some: bool = False
) -> Callable[[Callable[[Kernels, Any], None]], Callable[..., None]]:
    """Makes a pytest test of a check; ``needs``: which functions, with which arguments, it is about.

    ``always``: what is tried before anything is drawn, because few draws would hit it; ``some``: one argument will do,
    and the check leaves out the others (`Kernels.claimed`).
    """
    enough = any if some else all

    def decorate(check: Callable[[Kernels, Any], None]) -> Callable[..., None]:
        def test(kernels: Kernels, record_property: Callable[[str, Any], None]) -> None:
            law = as_sentence(check.__name__)
            filed = {"number": "P17", "law": law, "implementation": kernels.name}
            lacking = [
                function
                for function, arguments in needs.items()
                if function not in kernels.functions or not enough(x in kernels.functions[function] for x in arguments)
            ]
            if lacking:
                record_property(PROPERTY, {**filed, "world": "", "verdict": "not claimed"})
                return
            verdict, message, ends = "not judged: error in Lockstep", "", Ends()
            try:
                hold(check, kernels, draws, always, ends=ends)
                verdict = "holds"
            except AssertionError as error:
                verdict, message = "wrong", "\n".join(story(kernels, law, error))
            finally:
                ended = {"world": "one process", "verdict": verdict, "examples": len(ends)}
                record_property(PROPERTY, {**filed, **ended})
            if message:
                pytest.fail(message, pytrace=False)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.kernel_law = (check, draws, always)  # type: ignore[attr-defined]  # read by conftest and by the tests of faults
        return test

    return decorate


def story(kernels: Kernels, law: str, error: AssertionError) -> list[str]:
    """What happened, line by line."""
    result, *details = str(error).splitlines() or [""]
    case = getattr(error, "__notes__", [])[:1]  # the others are Hypothesis's, and say the same at length
    words = [f"{kernels.name.rpartition(':')[2]} breaks P17: wrong", ""]
    words += [*entry("The law", law), *entry("Result", result), *details]
    return [*words, "", *entry("Case", *case)]


def hold(
    check: Callable[[Kernels, Any], None],
    kernels: Kernels,
    draws: st.SearchStrategy[Any],
    always: Sequence[Any] = (),
    shrink: bool = True,
    ends: Ends | None = None,
) -> None:
    """Searches, shrinks, and raises the smallest failure; without ``shrink``, the same one in every run.

    ``ends``: filled in. The same case ends in the same way, also where chance decided it.
    """
    known = Ends() if ends is None else ends
    profile = settings()
    wanted = settings(
        max_examples=max(1, profile.max_examples // (INTERPRETED if device.choose() == "interpreted" else 1)),
        backend=INDEPENDENT,
        derandomize=profile.derandomize or not shrink,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])),
        suppress_health_check=list(HealthCheck),
    )

    def examine(drawn: Any) -> None:
        case = repr(drawn)
        if case not in known:
            known[case] = _wrong(check, kernels, drawn)
        if (error := known[case]) is not None:
            raise error

    search = given(draws)(examine)
    for case in reversed(always):
        search = example(case)(search)
    wanted(search)()


def _wrong(check: Callable[[Kernels, Any], None], kernels: Kernels, drawn: Any) -> AssertionError | None:
    """What is wrong in a case, with a note that says which it is."""
    try:
        check(kernels, drawn)
    except AssertionError as error:
        error.add_note(repr(drawn))
        return error
    return None


def expects_failure(test: Callable[..., None], kernels: Kernels) -> str:
    """Holds the law against kernels with a fault, and returns what the failure says; pytest fails where none comes."""
    check, draws, always = test.kernel_law  # type: ignore[attr-defined]
    with pytest.raises(AssertionError) as failure:
        hold(check, kernels, draws, always, shrink=False)
    return "\n".join([str(failure.value), *getattr(failure.value, "__notes__", ())])
