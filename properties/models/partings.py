"""The ways in which a right implementation may split one mean into several. Each way rounds at other places."""

from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.properties.claims import Claims

Batch = Sequence[Sequence[Sequence[Any]]]  # a micro-batch: the gradient of each use, or None, by rank and parameter


def partings(batches: Sequence[Batch], claims: Claims) -> Iterator[Sequence[Batch]]:
    """The parts of each way, in the order in which they are averaged. Every use is in exactly one part.

    Code that communicates inside `no_sync` may average each micro-batch by itself. Code that gathers a parameter for
    each use, as in stage 3, may average the gradient of each use by itself. With a silent `no_sync`, only the last
    micro-batch is averaged. Gradients accumulated before it are averaged with one of its uses, or by themselves.
    """
    if not claims.silent_no_sync:
        yield batches
    if claims.stage != 3 or max(len(uses) for uses in batches[0][0]) == 1:
        return
    *earlier, uses = (_by_use(batch) for batch in batches)
    before = [use for batch in earlier for use in batch]
    if not claims.silent_no_sync:
        yield [*before, *uses]
    elif not before:
        yield uses
    else:
        yield [_as_one(before), *uses]
        for place, use in enumerate(uses):
            yield [_as_one([*before, use]), *uses[:place], *uses[place + 1 :]]


def _by_use(batch: Batch) -> list[Batch]:
    """A micro-batch split into several, in each of which a parameter has at most one of its uses."""
    most = max(len(uses) for uses in batch[0])
    return [[[uses[use : use + 1] or [None] for uses in mine] for mine in batch] for use in range(most)]


def _as_one(batches: Sequence[Batch]) -> Batch:
    """Several micro-batches as one with the uses of all."""
    by_rank = zip(*batches, strict=True)
    return [[[use for uses in found for use in uses] for found in zip(*mine, strict=True)] for mine in by_rank]
