"""P20: samplers, batch samplers and loaders, compared with the oracle on dealing samples to ranks.

    shape       recognizes a class that deals samples, and the meaning of its constructor's arguments
    dealing     the draw: ranks, samples, and interruptions
    draws       the strategies
    rank        runs a sampler on every rank
    run         starts it on a trial's world
    judge       compares the results

A sample is a number, its index in the data set. So the loaded values identify the samples.
"""
