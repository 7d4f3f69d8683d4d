"""Real models beside the probes: usual torch modules, under the laws whose values can be proved for them.

    scenario    the draw: a model, its options, ranks, steps, micro-batches
    draws       the strategies
    modules     the models in torch
    yours       a user's own model in their place
    on_yours    the laws on a user's own model
    data        initial values and batches, in NumPy
    rank        trains a model on every rank
    model_seen  the observations of a rank
    run         starts it on a trial's world
    replay      replays the computations of each rank in one process
    exact       models in integers: the whole batch, without rounding
    partings    the ways in which a right implementation may split one mean into several
    proved      the expected values, from the replay or in integers
    judge       compares the results
    again       runs one scenario again: ``python -m lockstep.properties.models.again``

**How a model that rounds is judged without a tolerance.** Only communication is tested. The computations of a single
rank (forward, backward, its optimizer) are deterministic and use the same operations everywhere. So one process replays
them, rank by rank, from the values *seen* at the beginning of each step. The replayed local gradients, for each use of
a parameter in each micro-batch, equal the ranks' own bit for bit. From these the oracle proves an interval that
contains the mean over ranks for every order of addition, on a rank and between ranks (`oracle.enclosures`). Each
gradient must lie in its interval and have the same bits on all ranks. The replayed optimizer must turn it into the seen
parameters, bit for bit.

Errors do not accumulate, since each step begins from seen values. By linearity, the mean over shards is that of the
whole batch in one process. Batch norm normalizes over a rank's own shard, as in DistributedDataParallel. An interval
that contains every faulty value shows nothing. So `proved.unseen` names each faulty mean (a contribution missing or
doubled, a wrong divisor) that might lie in all intervals, and the laws count the runs without any.

The multilayer perceptron is linear in its coefficients and piecewise linear in its inputs. On small integers its
gradients are integers over powers of two. `exact` computes these and proves that nothing rounds.
"""
