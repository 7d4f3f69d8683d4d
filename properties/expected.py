"""The oracle's expectation of a scenario, with the choices that an implementation claims."""

from functools import lru_cache

from lockstep.oracle.expectation import Expectation
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims


@lru_cache(maxsize=32)  # several laws judge a program right after it was drawn
def expect(scenario: Scenario, claims: Claims, optimizers: str = "torch cpu") -> Expectation:
    """The expectation of every rank. ``optimizers``: see `oracle.optimizer_intervals`. Raises Inexact."""
    unused = claims.unused or "untouched"
    return interpret(
        scenario,
        claims.averaging,
        unused,
        optimizers,
        not claims.silent_no_sync,
        claims.gradient_dtype or claims.reduce_dtype or "",
    )


def is_exact(scenario: Scenario, claims: Claims) -> bool:
    """True if the oracle knows every bit."""
    expected = known(scenario, claims)
    return expected is not None and expected.exact


def known(scenario: Scenario, claims: Claims) -> Expectation | None:
    """The expectation of every rank; None if the oracle knows neither every bit nor an interval."""
    try:
        return expect(scenario, claims)
    except Inexact:
        return None
