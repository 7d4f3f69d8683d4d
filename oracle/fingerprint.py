"""The data of a scenario: every contribution to every gradient is a number of its own.

A gradient is a sum of contributions c[micro-batch, sample, parameter, element]. They are taken from the sequence of
Mian and Chowla (1944; OEIS A005282): 1, 2, 4, 8, 13, 21, 31, ..., the greedy sequence in which all sums of two terms
differ. So a contribution that is missing, doubled, in another's place or on another rank changes the result, and the
numbers of a small counterexample can be told apart by eye. A scenario therefore needs no drawn data.

Each is multiplied by odd(S)**w, S the number of samples and w the largest number of synchronizations in one window
between two ZeroGrads, so that every mean over ranks divides evenly (only the odd part of a divisor costs bits).
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from oracle.program import Backward, Scenario, ZeroGrad


@cache
def mian_chowla(count: int) -> tuple[int, ...]:
    """The first terms of 1, 2, 4, 8, 13, ...: each the least integer that keeps all pairwise sums distinct."""
    terms: list[int] = []
    differences: set[int] = set()
    candidate = 1
    while len(terms) < count:
        new = {candidate - term for term in terms}
        if not new & differences:
            terms.append(candidate)
            differences |= new
        candidate += 1
    return tuple(terms)


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
    return odd_part(scenario.samples) ** most


def contributions(scenario: Scenario) -> list[list[npt.NDArray[np.int64]]]:
    """c[m][p] of shape (samples, elements of p), in integers; zero where sample s does not use p in micro-batch m.

    Numbered micro-batch by micro-batch, in each sample by sample, in each parameter by parameter.
    """
    sizes = [parameter.count for parameter in scenario.parameters]
    total, samples, batches = sum(sizes), scenario.samples, len(scenario.microbatches)
    if scenario.only is None:
        # Rounding the count up keeps one long sequence in the cache instead of one for every length.
        terms = mian_chowla(-(-batches * samples * total // 64) * 64)[: batches * samples * total]
        table = np.array(terms, dtype=np.int64).reshape(batches, samples, total)
    else:
        batch, sample, parameter, element = scenario.only
        table = np.zeros((batches, samples, total), dtype=np.int64)
        table[batch, sample, sum(sizes[:parameter]) + element] = 1
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
    """Small integers, other ones on every rank and element: a rank that keeps its own shows. Rank 0's are the model's."""
    sizes = [parameter.count for parameter in scenario.parameters]
    start, values = rank * sum(sizes) + 1, []
    for size, parameter in zip(sizes, scenario.parameters, strict=True):
        values.append(np.arange(start, start + size, dtype=np.float64).reshape(parameter.shape))
        start += size
    return values
