"""Lockstep finds the smallest training program on which a data-parallel implementation is wrong.

    check        hold a class against the laws, from Python; the result says what is broken, and how
    law_tests    the same as pytest tests in a test suite of your own, one for each law

The command `lockstep` does it from a shell. What it is made of:

    oracle          what must happen
    worlds          where ranks run
    impls           implementations that ship, right ones and wrong ones
    properties      the laws
    pictures        what is drawn, for a terminal, a page, or a trace viewer
    benchmarks      figures against peers; only in a clone
    pytest_plugin   the options, fixtures and summary of a run of the laws under pytest

Importing this module imports none of them: it takes a millisecond, and no torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["CheckResult", "LawsBroken", "Unusable", "check", "law_tests"]

if TYPE_CHECKING:
    from lockstep.checking import CheckResult, LawsBroken, check
    from lockstep.in_your_tests import law_tests
    from lockstep.properties.implementations import Unusable

_HOMES = {
    "CheckResult": "lockstep.checking",
    "LawsBroken": "lockstep.checking",
    "Unusable": "lockstep.properties.implementations",
    "check": "lockstep.checking",
    "law_tests": "lockstep.in_your_tests",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
