"""The values that a reduction to one root leaves on the other ranks. The contract leaves them open.

On gloo they are the sums that the ring has made so far. They are the same here, so that code that uses them is wrong on
both worlds.
"""

import functools
import math
from collections.abc import Iterator, Sequence

from lockstep.worlds.sim.meeting import Flat
from lockstep.worlds.sim.order import Combine


def partial_sums(combine: Combine, inputs: Sequence[Flat], member: int) -> Flat:
    """The values of a member when each chunk has gone its way: c begins on member c - 1, and goes down to member c."""
    held, size = inputs[member].clone(), len(inputs)
    for chunk, (begin, end) in enumerate(_chunks(held.numel(), size)):
        before = [(chunk - 1 - hop) % size for hop in range((chunk - 1 - member) % size)]
        parts = [inputs[other][begin:end] for other in (*before, member)]
        held[begin:end] = functools.reduce(lambda arrived, own: combine(own, arrived), parts)
    return held


def _chunks(elements: int, size: int) -> Iterator[tuple[int, int]]:
    """First element and end of each, by gloo's rule (`oracle.gloo.chunk_bounds`) for two segments to a chunk, which
    tensors of up to some 2 MiB for each rank have.
    """
    length = 2 * math.ceil(elements / (2 * size))
    for chunk in range(size):
        yield min(chunk * length, elements), min((chunk + 1) * length, elements)
