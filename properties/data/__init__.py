"""P20: samplers, batch samplers and loaders, held to what the oracle says of dealing samples to ranks.

    shape       whether a class deals samples, and which of its constructor's arguments mean what
    dealing     what is drawn: ranks, samples, and when it is interrupted
    draws       the strategies
    rank        what every rank runs
    run         starts it on a trial's world
    judge       compares

A sample is a number, its place in the data set, so what a loader loads says which samples they were.
"""
