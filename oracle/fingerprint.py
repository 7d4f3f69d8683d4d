"""The data of a scenario: every contribution to every gradient is a number of its own.

A gradient is a sum of contributions c[micro-batch, sample, parameter, element]. They are 2 k - 1 for k from the
sequence of Mian and Chowla (1944; OEIS A005282): 1, 2, 4, 8, 13, 21, 31, ..., the greedy sequence in which all sums of
two terms differ. So: 1, 3, 7, 15, 25, 41, ... All are odd, so none is twice another either. A contribution that is
missing, doubled, in another's place or on another rank changes the result, and the numbers of a small counterexample
can be told apart by eye. The sequence grows with the third power of its length. Larger scenarios, which nobody reads,
take distinct odd numbers in scrambled order instead: two sums of them coincide only by chance, about one in eight times
their count for each element. A scenario therefore needs no drawn data.

Sums must stay exact in the parameter's format (`oracle.lattice`). In eight or eleven significand bits these numbers
are soon too large. A parameter then takes smaller ones, distinct only among those that are added up in one element;
they take turns from another start or by another stride in each element of the model. If even these do not fit, the
scenario is run several times, with a part of the contributions in each (``Scenario.sparse``; `runs_needed` gives the
number). In float64 there is room to spare: numbers are larger by 100 million. In float32 these are multiples of eight,
so a gradient that passes through a narrower dtype shows.

Each is multiplied by odd(D)**w, D the number of samples and w the largest number of synchronizations in one window
between two ZeroGrads, so that every mean over ranks divides evenly (only the odd part of a divisor costs bits). If
means divide by the ranks that remain, D is the least common multiple of all divisors. The numbers of the sequence then
begin at 3, because wrappers use zeros and ones to tell one another which ranks remain.

``Scenario.signs`` chooses the signs:

    positive, negative    all alike
    mixed                 those that are 3 modulo 4 are negative: 1, -3, -7, -15, 25, 41, ... All are then 1 modulo 4,
                          so n of them add up to n modulo 4, and to zero only by chance and if 4 divides n
    cancelling            all are positive. Inside ``no_sync`` one is larger by 4098, and the next is smaller by 4098.
                          That number has 12 bits: neither bfloat16 nor float16 has room for an odd one beside it
"""

import math
from functools import cache, lru_cache
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt

from lockstep.oracle.events import Backward, Join
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import CANCELLING

Table = npt.NDArray[np.int64]

MOST = 2**62
MOST_SIDON = 64
FAR = 100_000_000
AWAY = 2**12 + 2
SPARE_BITS = 16  # a lattice has values below 2**38, where float64 has 53 bits; steps and other names add one


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


def windows(scenario: Scenario) -> list[list[Backward]]:
    """The micro-batches between two ZeroGrads, window by window."""
    numbers = (scenario.standings[place + 1].window for place in scenario.places(Backward))  # it may begin one itself
    pairs = zip(numbers, scenario.microbatches, strict=True)
    return [[batch for _, batch in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]


def synchronizations(scenario: Scenario) -> int:
    """The most in one window between two ZeroGrads, and at least 1. Each of several backwards may be one."""
    each = (sum(batch.backwards for batch in window if batch.synchronize) for window in windows(scenario))
    return max((1, *each))


def divisor(scenario: Scenario) -> int:
    """D: a multiple of all that a sum over samples is divided by."""
    per_rank, divisors = scenario.samples // scenario.world_size, [scenario.samples]
    for place, batch in zip(scenario.places(Backward), scenario.microbatches, strict=True):
        if batch.synchronize and scenario.standings[place].divide_by == "remaining ranks":
            divisors.append(per_rank * (scenario.world_size - len(batch.gone)))
    return math.lcm(*divisors)


def multiplier(scenario: Scenario) -> int:
    """odd(D)**w: what every contribution is a multiple of."""
    return int(odd_part(divisor(scenario)) ** synchronizations(scenario))


def terms(scenario: Scenario) -> int:
    """The most contributions that are added up in one element: samples times micro-batches between two ZeroGrads."""
    return scenario.samples * max(map(len, windows(scenario)), default=0)


def capacity(scenario: Scenario, parameter: int) -> int:
    """The largest sum of numbers that stays exact in a parameter: 2**p over what they are all multiplied by.

    With the quadratic probe that includes the largest initial weight; what weights become later is not looked at. All
    means but the last are added to once more, with the bits of their fractions: a factor even(D) = D / odd(D) for each.
    What several backwards go through counts as often. What travels in another dtype must fit that too.
    """
    weights = sum(each.count for each in scenario.parameters) if scenario.probe == "quadratic" else 1
    fractions = (divisor(scenario) // odd_part(divisor(scenario))) ** (synchronizations(scenario) - 1)
    dtype = scenario.parameters[parameter].dtype
    precision = min(FORMATS[name].precision for name in (dtype, scenario.wire or dtype))
    passes = max((batch.passes for batch in scenario.microbatches), default=1)
    return int(2**precision // (multiplier(scenario) * fractions * max(weights, 1) * passes))


def runs_needed(scenario: Scenario) -> int:
    """The least number of sparse runs in each of which all numbers that meet in an element can be distinct and fit.

    Of t terms in R runs ceil(t / R) = n meet, and any n of the first n + 1 odd numbers add up to n (n + 2) at most: of
    n alone all sums would be n**2, in every element and after every window. One term must do: where even that does not
    fit, as after many means over seven in eight bits, no run is exact.
    """
    least = min((capacity(scenario, parameter) for parameter in range(len(scenario.parameters))), default=1)
    runs, together = 1, terms(scenario)
    while together > 1 and together * (together + 2) > least:
        runs += 1
        together = -(-terms(scenario) // runs)
    return runs


def small_numbers(places: int, starts: npt.NDArray[np.int64], together: int, capacity: int, samples: int) -> Table:
    """Odd numbers of shape (places, elements), distinct in any ``together`` places that follow one another.

    1 + 2 ((stride place + start) mod m), stride and m without a common divisor: any n = ``together`` of them that
    follow one another add up to n (2 m - n) at most. Where there is room, m and the number of samples have none either,
    so that a micro-batch is like none of the m - 1 before. Elements begin at ``starts``, and the next m of these have
    the next stride.
    """
    modulus = max(together, (capacity // together + together) // 2)
    while math.gcd(modulus, samples) > 1 and modulus > together + 1:
        modulus -= 1
    coprime = (stride for stride in range(1, modulus + 1) if math.gcd(stride, modulus) == 1)
    turns = starts // modulus
    strides = np.array([*islice(coprime, int(turns.max(initial=0)) + 1)])  # a modulus may have millions: those needed
    stride = strides[turns % len(strides)]
    indices: Table = (stride * np.arange(places)[:, None] + starts) % modulus
    return 1 + 2 * indices


@lru_cache(maxsize=8)
def contributions(scenario: Scenario) -> list[list[Table]]:
    """c[m][p] of shape (samples, elements of p), in integers; zero where sample s does not use p in micro-batch m.

    Numbered micro-batch by micro-batch, in each sample by sample, in each parameter by parameter.
    Kept for later calls, and not to be changed.
    """
    sizes = [parameter.count for parameter in scenario.parameters]
    batches, samples, total = len(scenario.microbatches), scenario.samples, sum(sizes)
    used = _used(scenario, sizes)
    if scenario.only is None:
        table = _table(scenario, used.reshape(batches * samples, total), sizes).reshape(used.shape)
    else:
        microbatch, alone, place, element = scenario.only
        table = np.zeros(used.shape, dtype=np.int64)
        table[microbatch, alone, sum(sizes[:place]) + element] = 1
    factor = multiplier(scenario)
    if factor * int(np.abs(table).max(initial=0)) > MOST:
        raise Inexact(f"contributions that are multiples of {factor} leave the range of the lattice")
    if scenario.signs == CANCELLING and scenario.only is None:
        table += _back_and_forth(scenario, used)
    table *= factor * used
    cuts = np.cumsum(sizes)[:-1]
    return [np.split(batch, cuts, axis=1) for batch in table]


def _used(scenario: Scenario, sizes: list[int]) -> npt.NDArray[np.bool_]:
    """True where sample s uses the parameter of an element in micro-batch m: [m][s][element]."""
    used = np.zeros((len(scenario.microbatches), scenario.samples, len(sizes)), dtype=bool)
    for event, batch in zip(scenario.microbatches, used, strict=True):
        for sample, order in enumerate(event.orders):
            batch[sample, list(order)] = True
    return np.repeat(used, sizes, axis=2)


def _table(scenario: Scenario, used: npt.NDArray[np.bool_], sizes: list[int]) -> Table:
    """A number for each place (micro-batch and sample) and element, and zero outside of this sparse run.

    Run i of R has, of element e, the places t with (t + e) mod R = i, so in each run most ranks contribute somewhere.
    """
    (places, total), (run, runs), together = used.shape, scenario.sparse, max(terms(scenario), 1)
    here = (np.arange(places)[:, None] + np.arange(total)) % runs == run
    joins = scenario.has(Join)
    table: Table = numbers(places * total + joins)[joins:].reshape(places, total)
    # Sums over any `together` places that follow one another: what comes together between two ZeroGrads is among them.
    sums = np.cumsum(np.vstack([np.zeros((together, total), dtype=np.int64), table * used * here]), axis=0)
    largest = (sums[together:] - sums[:-together]).max(axis=0, initial=0)
    start, starts = 0, numbers(total) // 2
    for parameter, size in enumerate(sizes):
        mine = slice(start, start + size)
        start += size
        if largest[mine].max(initial=0) > (room := capacity(scenario, parameter)):
            small = small_numbers(-(-places // runs), starts[mine], -(-together // runs), room, scenario.samples)
            table[:, mine] = np.repeat(small, runs, axis=0)[:places]
        elif far(scenario, parameter) and largest[mine].max(initial=0) + together * FAR <= room >> SPARE_BITS:
            table[:, mine] += FAR
    table *= here
    return signed(table, scenario.signs)


def _back_and_forth(scenario: Scenario, used: npt.NDArray[np.bool_]) -> Table:
    """Contributions that cancel: `AWAY` inside `no_sync`, and its opposite in the next micro-batch, in elements
    of at least float32 that a sample uses in both.
    """
    wide = [FORMATS[each.dtype].bytes > 2 for each in scenario.parameters]
    elements = np.repeat(wide, [each.count for each in scenario.parameters])
    table, back = np.zeros(used.shape, dtype=np.int64), False
    places, batches = scenario.places(Backward), scenario.microbatches
    for batch, (place, event) in enumerate(zip(places[:-1], batches, strict=False)):
        following = batches[batch + 1]
        alike = (following.passes, following.gone) == (event.passes, event.gone) and places[batch + 1] == place + 1
        alike = alike and following.zeroes is None
        if alike and not event.synchronize and not back:
            both = used[batch] & used[batch + 1] & elements
            table[batch], table[batch + 1], back = AWAY * both, -AWAY * both, True
        else:
            back = False
    return table


def signed(table: Table, signs: str) -> Table:
    """Positive odd numbers, and zeros, with the signs of that name in `oracle.setup.SIGNS`."""
    turned = {"mixed": table % 4 == 3, "negative": True}.get(signs, False)
    return np.where(turned, -table, table)


def far(scenario: Scenario, parameter: int) -> bool:
    """True if a parameter's numbers may lie beyond float32's range: nothing else makes its gradients large."""
    plain = scenario.probe == "linear" and scenario.loss_scale is None
    return plain and scenario.parameters[parameter].dtype == "float64"


def coefficients(scenario: Scenario, rank: int) -> list[list[npt.NDArray[np.float64]]]:
    """The inputs of a rank's probe: the mean of its samples' contributions, [m][p] of p's shape. Exact in float64."""
    per_rank = scenario.samples // scenario.world_size
    mine = slice(rank * per_rank, (rank + 1) * per_rank)
    return [
        [
            (values[mine].sum(axis=0) / per_rank).reshape(parameter.shape)
            for values, parameter in zip(batch, scenario.parameters, strict=True)
        ]
        for batch in contributions(scenario)
    ]
