"""The way in which a rank carries out each event: a module for each event, under the name that the oracle's has.

A module holds one object, ``ON_RANKS``, of a class derived from `on_ranks.OnRanks`. An event without one fails here, at
import.
"""

from typing import Any

from lockstep.oracle.events import EVENTS, Event
from lockstep.properties.event_modules import of_event
from lockstep.properties.ranks.events.on_ranks import OnRanks

ON_RANKS: dict[type[Event], OnRanks[Any]] = {
    event: of_event(__name__, event, "ON_RANKS", OnRanks) for event in EVENTS.values()
}
