"""Conditions on claims under which something is drawn."""

from collections.abc import Callable

from lockstep.properties.claims import Claims

Claimed = Callable[[Claims], bool]


def always(claims: Claims) -> bool:
    """True: no claim is needed."""
    return True
