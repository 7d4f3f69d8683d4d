"""The rules between events that every program of a real training loop obeys.

The rules of one event alone are in its own `check`.
"""

from lockstep.oracle.event import Event
from lockstep.oracle.events import ZeroGrad
from lockstep.oracle.setup import Setup
from lockstep.oracle.standing import Standing, at_the_start


def standings(setup: Setup, program: tuple[Event, ...]) -> tuple[Standing, ...]:
    """The standing before each event, and after the last.

    ValueError, in one line that shows the value, for a program without a meaning.
    """
    now = at_the_start(setup)
    found = [now]
    for event in program:
        _check_order(event, now)
        event.check(setup, now)
        now = event.after(setup, now)
        found.append(now if now.built == event.builds else now._replace(built=event.builds))
        now = found[-1]
    _check_end(now)
    return tuple(found)


def _check_order(event: Event, before: Standing) -> None:
    if before.unfinished != event.finishes:
        raise ValueError(f"Finish follows each synchronizing Backward, and nothing else: here is {event!r}")
    if before.local and not event.while_local:
        raise ValueError(f"{event!r} follows a Backward that did not synchronize")
    if before.leftover and event != ZeroGrad():
        raise ValueError(f"{event!r} follows a Freeze that came while there were gradients: drop them first")
    if before.gone is not None and not event.while_joined:
        raise ValueError(f"{event!r} comes before EndJoin, where ranks that have run out would miss it")


def _check_end(after: Standing) -> None:
    if after.leftover:
        raise ValueError("the program ends with a Freeze that came while there were gradients: drop them first")
    if after.unfinished or after.local:
        raise ValueError("the program ends before its last Backward is synchronized and finished")
    if after.gone is not None:
        raise ValueError("the program ends before EndJoin")
