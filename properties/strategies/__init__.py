"""Strategies that draw scenarios.

A program is drawn as a whole and shrinks as a whole: to two ranks, one parameter of one element, one micro-batch, the
identity order, no options. Only behaviour that an implementation claims is drawn.

    scenarios    the strategy of most laws: `exact_scenarios`
    features     the features of scenarios, by name; those of events are defined in `properties.events`
    traits       further properties of scenarios, which no law asks for
    within       checks that a scenario stays within the claims
    models       parameters, buffers, bucket caps
    training     the caller's side: optimizer, hyper-parameters, groups, loss scale
    throughout   the caller's habits, and the order of registration
    programs     events in any valid order; each event is written by its module in `properties.events`
    timing       the moments at which collectives read and write, on sim
    variants     scenarios that several laws derive from others
    meetings     how often features, and pairs of them, are drawn
    combined     combinations of features that are rare by chance
    moments      events before which a caller may do something of its own
    several      micro-batches with several forwards or backwards
    calls        calls of wrappers of collectives
    independent  examples that do not depend on one another
"""

from lockstep.properties.events.loop import permutation
from lockstep.properties.strategies.models import MOST_PARAMETERS, bucket_caps
from lockstep.properties.strategies.moments import evaluations
from lockstep.properties.strategies.scenarios import MOST_RANKS, exact_scenarios, scenarios, those_there_are

__all__ = [
    "MOST_PARAMETERS",
    "MOST_RANKS",
    "bucket_caps",
    "evaluations",
    "exact_scenarios",
    "permutation",
    "scenarios",
    "those_there_are",
]
