"""`lockstep.law_tests`: the laws as tests in a test suite of your own, which your own pytest collects and runs."""

import atexit
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from lockstep.worlds.progress import is_supervised


def law_tests(
    target: str | Callable[..., Any],
    *,
    claims: Mapping[str, Any] | None = None,
    world: str | Sequence[str] = "sim",
    laws: str | Sequence[str] | None = None,
    examples: int | None = None,
    seed: int | None = None,
    report: str | Path = "lockstep-report",
    known: str | Path | None = None,
    model: str | Callable[..., Any] | None = None,
    cuda_stubs: bool = False,
) -> Callable[..., None]:
    """A pytest test for each law that the target claims, in one parametrized function.

    Three lines of a test file are enough:

        import lockstep
        from my_package.ddp import MyDDP
        test_my_ddp = lockstep.law_tests(MyDDP)

    pytest runs them like any other of the file: `-k`, `-n`, markers on the file, and JUnit work, and nothing is
    registered with it. A verdict is filed in the test's `user_properties`. The arguments are those of `lockstep.check`.
    Where all that fails of a law is ``known``, its test is an expected failure (xfail). It fails where the file lists
    the law, and the law holds.
    """
    if is_supervised():  # a process of a rank has imported the file for the class in it, and runs no tests
        return _no_test
    import pytest

    cases = _Cases(target, claims, world, laws, examples, seed, Path(report), model, cuda_stubs)

    def test(law: Any, request: Any) -> None:
        from lockstep.properties.reports.matrix import for_junit
        from lockstep.properties.results import settled
        from lockstep.properties.results.known import read

        __tracebackhide__ = True
        entries, filed = read(known), list[tuple[str, Any]]()
        try:
            law.run(lambda name, value: filed.append((name, value)))
        except pytest.fail.Exception:
            if not (reason := "; ".join(settled.settle(row, entries) for _, row in filed)):
                raise
            pytest.xfail(reason)
        finally:
            request.node.user_properties.extend(for_junit(filed))
        if mended := settled.mended([row for _, row in filed], entries, complete=False):
            pytest.fail("\n".join(settled.told([], mended)), pytrace=False)

    placed = _as_if_written_by(sys._getframe(1), test)
    tests: Callable[..., None] = pytest.mark.parametrize("law", cases)(placed)
    return tests


class _Cases(Sequence[Any]):
    """The laws as parameters for pytest, looked up when it collects and not when the file is imported."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    @functools.cached_property
    def _parameters(self) -> list[Any]:
        import pytest

        from lockstep.properties.implementations import Unusable
        from lockstep.properties.running.session import Session

        try:
            session = Session(*self._arguments)
        except Unusable as error:
            raise pytest.Collector.CollectError(f"lockstep: {error}") from None
        atexit.register(session.close)
        return [
            pytest.param(held, id=f"{held.number}-{held.law.replace(' ', '_')}-{held.world}")
            for held in session.held(probed=False)
        ]

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, place: Any) -> Any:
        return self._parameters[place]


def _as_if_written_by(frame: Any, test: Callable[..., None]) -> Callable[..., None]:
    """The test with the place of the line that asked for it, so that pytest tells of that and not of this file."""
    code = test.__code__.replace(co_filename=frame.f_code.co_filename, co_firstlineno=frame.f_lineno)
    placed = FunctionType(code, test.__globals__, "test_laws", None, test.__closure__)
    placed.__module__ = frame.f_globals.get("__name__", __name__)
    return placed


def _no_test() -> None: ...
