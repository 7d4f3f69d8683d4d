"""Implementations with one known fault each, a few lines over a correct one; each is killed by the law it breaks.

``known_fault`` says what is wrong, ``killed_by`` which laws must find it, ``source`` where it was seen:

    D01 V https://...   a fault that was published at this address, or, after commas, at several
    recipe              made up here, after the way such code goes wrong; with more words, what it varies
    systems: ...        a weak spot of systems of that kind, which `docs/findings` tells where it says so
    anything else       in `peers`: the check of another project that the class passes

D01 is the entry of the collected reports that it comes from; the collection is no part of the repository, and the
address says what it says. The letter is the topic (`TOPICS`), the number only counts.

The letter behind it says how far the fault is known:

    V  verified: what is reported there states the cause
    D  described: the defect is reported there, its cause is partly inferred
    S  seen: read in the published source itself
"""

TOPICS = {
    "A": "Value and scale of the mean",
    "B": "Accumulation and no_sync",
    "C": "Parameters that take no part",
    "D": "The same collectives on every rank",
    "E": "Asynchrony and buffers that are used again",
    "F": "Buckets, padding and layout",
    "G": "Norms and clipping",
    "H": "Steps of sharded optimizers",
    "I": "Checkpoints and masters",
    "J": "Precision and compression",
    "K": "Wrappers of collectives",
    "L": "Hooks on the wrong tensor",
    "M": "Start and buffers",
    "N": "Kernels",
    "O": "Samplers and loaders",
    "P": "Training loops",
    "Q": "Parameters that belong to some ranks",
}
