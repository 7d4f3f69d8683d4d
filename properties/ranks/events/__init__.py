"""The way in which a rank carries out each event. Each event has a module, named like the oracle's module for it.

A module holds one object ``ON_RANKS`` of a subclass of `on_ranks.OnRanks`. An event without a module fails at import.
"""

from typing import Any

from lockstep.oracle.events import EVENTS, Event
from lockstep.properties.event_modules import of_event
from lockstep.properties.ranks.events.on_ranks import OnRanks

ON_RANKS: dict[type[Event], OnRanks[Any]] = {
    event: of_event(__name__, event, "ON_RANKS", OnRanks) for event in EVENTS.values()
}
