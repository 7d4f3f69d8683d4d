"""The data of a scenario: every contribution to every gradient is a number of its own.

A gradient is a sum of contributions c[micro-batch, sample, parameter, element]. They are 2 k - 1 for k from the
sequence of Mian and Chowla (1944; OEIS A005282): 1, 2, 4, 8, 13, 21, 31, ..., the greedy sequence in which all sums of
two terms differ. So: 1, 3, 7, 15, 25, 41, ... All are odd, so none is twice another either. A contribution that is
missing, doubled, in another's place or on another rank changes the result, and the numbers of a small counterexample
can be told apart by eye. The sequence grows with the third power of its length, so larger scenarios, which nobody
reads, take distinct odd numbers in scrambled order instead: two sums of them coincide only by chance, about one in
eight times their count for each element. A scenario therefore needs no drawn data.

Each is multiplied by odd(S)**w, S the number of samples and w the largest number of synchronizations in one window
between two ZeroGrads, so that every mean over ranks divides evenly (only the odd part of a divisor costs bits).
"""

from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from oracle.program import Backward, Scenario, ZeroGrad

MOST_SIDON = 64


@cache
def mian_chowla(count: int) -> tuple[int, ...]:
    """The first terms of 1, 2, 4, 8, 13, ...: each the least integer that keeps all pairwise sums distinct."""
    terms: list[int] = []
    differences: set[int] = set()
    candidate = 1
    while len(terms) < count:
        if not any(candidate - term in differences for term in terms):
            differences.update(candidate - term for term in terms)
            terms.append(candidate)
        candidate += 1
    return tuple(terms)


def numbers(count: int) -> npt.NDArray[np.int64]:
    """Distinct odd positive integers: from Mian and Chowla's, or, beyond 64, below 32 * count in scrambled order.

    Scrambled: two rounds of x <- x xor (x >> b/2), x <- odd * x mod 2**b, each a permutation of the b-bit numbers. One
    multiplication alone would keep equal steps equal, and of three ranks the middle one's number would be their mean.
    """
    if count <= MOST_SIDON:
        return 2 * np.array(mian_chowla(MOST_SIDON)[:count], dtype=np.int64) - 1
    bits = (8 * count - 1).bit_length()
    scrambled = np.arange(count, dtype=np.int64)
    for odd in (2654435761, 2246822519):  # primes near 2**32 over the golden ratio, and of xxHash
        scrambled = (scrambled ^ (scrambled >> bits // 2)) * odd % 2**bits
    scrambled ^= scrambled >> bits // 2
    return 1 + 2 * scrambled


def odd_part(number: int) -> int:
    """The largest odd divisor of a positive integer."""
    while number % 2 == 0:
        number //= 2
    return number


def multiplier(scenario: Scenario) -> int:
    """odd(S)**w: what every contribution is a multiple of."""
    most, window = 1, 0
    for event in scenario.program:
        window = 0 if isinstance(event, ZeroGrad) else window + (isinstance(event, Backward) and event.synchronize)
        most = max(most, window)
    return int(odd_part(scenario.samples) ** most)


@lru_cache(maxsize=8)
def contributions(scenario: Scenario) -> list[list[npt.NDArray[np.int64]]]:
    """c[m][p] of shape (samples, elements of p), in integers; zero where sample s does not use p in micro-batch m.

    Numbered micro-batch by micro-batch, in each sample by sample, in each parameter by parameter. Not to be written to.
    """
    sizes = [parameter.count for parameter in scenario.parameters]
    total, samples, batches = sum(sizes), scenario.samples, len(scenario.microbatches)
    if scenario.only is None:
        table = numbers(batches * samples * total).reshape(batches, samples, total)
    else:
        microbatch, alone, place, element = scenario.only
        table = np.zeros((batches, samples, total), dtype=np.int64)
        table[microbatch, alone, sum(sizes[:place]) + element] = 1
    table *= multiplier(scenario)
    cuts = np.cumsum(sizes)[:-1]
    result = [np.split(batch, cuts, axis=1) for batch in table]
    for event, batch in zip(scenario.microbatches, result, strict=True):
        for sample, order in enumerate(event.orders):
            for parameter in set(range(len(sizes))) - set(order):
                batch[parameter][sample] = 0
    return result


def coefficients(scenario: Scenario, rank: int) -> list[list[npt.NDArray[np.float64]]]:
    """What a rank feeds its probe: the mean of its samples' contributions, [m][p] of p's shape. Exact in float64."""
    per_rank = scenario.samples // scenario.world_size
    mine = slice(rank * per_rank, (rank + 1) * per_rank)
    return [
        [
            (values[mine].sum(axis=0) / per_rank).reshape(parameter.shape)
            for values, parameter in zip(batch, scenario.parameters, strict=True)
        ]
        for batch in contributions(scenario)
    ]


def initial_parameters(scenario: Scenario, rank: int) -> list[npt.NDArray[np.float64]]:
    """Small integers, other ones on every rank and element, so that a rank that keeps its own shows."""
    sizes = [parameter.count for parameter in scenario.parameters]
    start, values = rank * sum(sizes) + 1, []
    for size, parameter in zip(sizes, scenario.parameters, strict=True):
        values.append(np.arange(start, start + size, dtype=np.float64).reshape(parameter.shape))
        start += size
    return values
