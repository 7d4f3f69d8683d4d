"""Real models beside the probes: torch modules as people write them, under the laws whose values they can prove.

    scenario    what is drawn: a model, its options, ranks, steps, micro-batches
    draws       the strategies
    modules     the models in torch
    yours       a user's own model in their place
    on_yours    the laws on that
    data        their initial values and their batches, in NumPy
    rank        what every rank runs
    model_seen  what it sees, and sends back
    run         starts it on a trial's world
    replay      the same as on the ranks, rank by rank, in one process
    exact       the multilayer perceptron in integers: the whole batch, nothing rounds
    partings    the ways in which right code averages in parts what is one mean
    proved      what must be seen, from the replay or in integers
    judge       compares
    again       a run that failed, once more: ``python -m lockstep.properties.models.again``

**How a model that rounds is judged without a tolerance.** Only communication is on trial. What a rank computes by
itself (forward, backward, its optimizer) is deterministic and made of the same operations wherever it runs, so one
process replays it, rank by rank, from what was *seen* at the beginning of each step: these local gradients, of each use
of a parameter in each micro-batch, have the ranks' own bits. From them the oracle proves an interval that holds the
mean over ranks in every order of addition, on a rank and between ranks (`oracle.enclosures`); each gradient must lie in
it, have one set of bits on all ranks, and lead, through the replayed optimizer, to parameters that agree bit for bit.
Nothing drifts, since each step begins from what was seen. By linearity the mean over shards is that of the whole batch
in one process. Batch norm normalizes over a rank's own shard, as in DistributedDataParallel. An interval that nothing
can leave shows nothing: `proved.unseen` names each faulty mean (a contribution missing or doubled, a wrong divisor)
that it might not see, and the laws count where there is none.

The multilayer perceptron is linear in its coefficients and piecewise linear in its inputs: on small integers its
gradients are integers over powers of two, and `exact` computes them so, with the proof that nothing rounds.
"""
