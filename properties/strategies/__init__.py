"""Draws scenarios. A program is drawn as a whole and shrinks as a whole: to two ranks, one parameter of one element,
one micro-batch, the identity order, no options. Only what an implementation claims is drawn.

    scenarios    what laws draw from: `exact_scenarios`
    features     what a scenario can have, by name; what of it is about an event stands in `properties.events`
    traits       what a scenario can be like besides, which nobody asks for
    within       whether a scenario keeps to what is claimed
    models       parameters, buffers, bucket caps
    training     the caller's side: optimizer, hyper-parameters, groups, loss scale
    throughout   what the caller does throughout, and the order of registration
    programs     events in any order that a training loop could have; each writes its own in `properties.events`
    timing       when collectives read and write, on sim
    variants     scenarios that several laws make of others
    meetings     how often features, and pairs of them, are drawn in programs
    combined     features that seldom meet by chance
    moments      events before which a caller may do something of its own
    several      micro-batches with several forwards, or backwards
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
