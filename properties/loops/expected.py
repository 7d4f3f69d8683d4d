"""The expected loss, norm, learning rate and weights of each window, with the error that rounding may cause.

The model computes in float64. A loop may count tokens, divide, add losses and measure norms in float32, in any order. A
mean of means weighted by their tokens is as good as a sum that is divided. No sum has terms of both signs, so the error
of a result is at most its size times the number of roundings times half a unit in the last place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from lockstep.oracle.window import Sample, gradient, loss
from lockstep.properties.loops.training import Training

# A token of value a has the loss a (3 v + 4 w): its gradient is (3 a, 4 a), whose norm is 5 a exactly.
SLOPES = (3, 4)
BEGIN = (Fraction(1), Fraction(2))
RATE = Fraction(1, 4)  # of the first step; a schedule halves it after each step
EPSILON = Fraction(1, 10**6)  # torch's `clip_grad_norm_` adds it to the norm; others add nothing
# At most 3 micro-batches and 4 ranks are added, and each part is multiplied or divided at most 8 times.
FLOAT = Fraction(16, 2**24)
DOUBLE = Fraction(4, 2**53)  # of the weights, in the model and in the optimizer


@dataclass(frozen=True)
class Between:
    """All numbers from ``low`` to ``high``."""

    low: Fraction
    high: Fraction

    def holds(self, value: float | None) -> bool:
        """True for a number between the two; False for None, NaN and infinities."""
        if value is None or value != value or abs(value) == float("inf"):
            return False
        return self.low <= Fraction(value) <= self.high

    def __str__(self) -> str:
        return f"{float((self.low + self.high) / 2)}"


@dataclass(frozen=True)
class Expected:
    """The expected results of one window. ``weights``: after it. The learning rate is exact."""

    loss: Between
    norm: Between
    rate: Fraction
    weights: tuple[Between, ...]


def expected(training: Training, policy: str, halves: bool) -> Iterator[Expected]:
    """The expected results of each window. ``halves``: there is a schedule."""
    weights, rate = tuple(Between(each, each) for each in BEGIN), RATE
    for place, ranks in enumerate(training.values()):
        window = [[[_sample(tokens) for tokens in batch] for batch in rank] for rank in ranks]
        reported = _loss(loss(window, policy), weights)
        final = gradient(window, policy, len(SLOPES))
        norm = final[0] / SLOPES[0] * 5
        skipped = place == training.overflow
        if not skipped:
            factor = _factor(norm, training.max_norm)
            weights = tuple(_stepped(each, rate * change, factor) for each, change in zip(weights, final, strict=True))
        yield Expected(reported, _around(norm, norm, norm * FLOAT), rate, weights)
        rate = rate / 2 if halves and not skipped else rate


def _sample(tokens: list[int]) -> Sample:
    return Sample(tuple(tokens), tuple(tuple(slope * token for slope in SLOPES) for token in tokens))


def _around(low: Fraction, high: Fraction, error: Fraction) -> Between:
    return Between(low - error, high + error)


def _loss(mean: Fraction, weights: tuple[Between, ...]) -> Between:
    """The mean of the tokens' values, multiplied by the slopes and weights."""
    low = mean * sum(slope * each.low for slope, each in zip(SLOPES, weights, strict=True))
    high = mean * sum(slope * each.high for slope, each in zip(SLOPES, weights, strict=True))
    terms = mean * sum(slope * max(abs(each.low), abs(each.high)) for slope, each in zip(SLOPES, weights, strict=True))
    return _around(low, high, max(abs(low), abs(high)) * FLOAT + terms * DOUBLE)


def _factor(norm: Fraction, power: int | None) -> Between:
    """The factor of clipping before rounding."""
    if power is None or not norm:
        return Between(Fraction(1), Fraction(1))
    limit = Fraction(2) ** power
    return Between(min(Fraction(1), limit / (norm + EPSILON)), min(Fraction(1), limit / norm))


def _stepped(weight: Between, change: Fraction, factor: Between) -> Between:
    """The weight after a step. ``change``: the non-negative change without clipping."""
    most, least = change * factor.high * (1 + FLOAT), change * factor.low * (1 - FLOAT)
    error = DOUBLE * (max(abs(weight.low), abs(weight.high)) + most)
    return _around(weight.low - most, weight.high - least, error)
