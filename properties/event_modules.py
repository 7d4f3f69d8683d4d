"""Find a package's object for each event in its module of the event's name, so that adding an event edits no list."""

from importlib import import_module
from typing import Any

from lockstep.oracle.events import Event


def of_event(package: str, event: type[Event], name: str, kind: type) -> Any:
    """The object ``name`` of class ``kind`` in the package's module of the event's name.

    Raises ImportError with a message of one line if there is none.
    """
    path = f"{package}.{event.module()}"
    try:
        found = getattr(import_module(path), name, None)
    except ModuleNotFoundError as missing:
        if missing.name != path:
            raise
        raise ImportError(f"{event.__name__} has no module {path}") from None
    if not isinstance(found, kind):
        raise ImportError(f"{path} has no {name} of class {kind.__name__} for {event.__name__}")
    return found
