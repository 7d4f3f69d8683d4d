"""The claims that are needed for something to be drawn."""

from collections.abc import Callable

from lockstep.properties.claims import Claims

Claimed = Callable[[Claims], bool]


def always(claims: Claims) -> bool:
    """It needs no claim."""
    return True
