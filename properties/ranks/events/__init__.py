"""How a rank carries out each event of a program: a module for each event, under the name that the oracle's has.

A module holds one object, ``ON_RANKS``, of a class derived from `on_ranks.OnRanks`. An event without one fails here, at
import.
"""

import importlib
from typing import Any

from lockstep.oracle.events import EVENTS, Event
from lockstep.properties.ranks.events.on_ranks import OnRanks


def find(kind: type[Event]) -> OnRanks[Any]:
    """ImportError, in one line, where no module says how a rank carries an event out."""
    path = f"{__name__}.{kind.module()}"
    file = f"properties/ranks/events/{kind.module()}.py"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise ImportError(f"no rank can carry out {kind.__name__}: there is no {file}") from None
    found = getattr(module, "ON_RANKS", None)
    if not isinstance(found, OnRanks):
        raise ImportError(f"no rank can carry out {kind.__name__}: {file} has no ON_RANKS, an OnRanks")
    return found


ON_RANKS: dict[type[Event], OnRanks[Any]] = {kind: find(kind) for kind in EVENTS.values()}
