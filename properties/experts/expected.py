"""The expected gradients, norm and weights of each step by the oracle's rules.

Gradients are integers and divisors are powers of two. So gradients, and weights without clipping, are exact in float64.
A sum of squares and its root may be computed in float32 in any order, and clipping multiplies by a rounded quotient. So
norms and clipped gradients have bounds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from lockstep.oracle.experts import Mesh, Vector, divisor, gradient, squared_norm
from lockstep.properties.experts.mixture import Mixture, Parts
from lockstep.properties.loops.expected import EPSILON, FLOAT, Between

RATE = Fraction(1, 2)  # of the SGD step after each backward
# Squares of at most 20 elements are added, then the sums of 4 ranks, divided by numbers of ranks; then the root
# follows.
ROUNDED = 3 * FLOAT  # 48 roundings to float32
_DIGITS = 2**80  # the precision of the root of a fraction


@dataclass(frozen=True)
class Expected:
    """The expected results of one step, by parameter name.

    ``gradients``: after clipping, if there is any. ``weights``: after the step; None if clipping has rounded them.
    """

    gradients: Mapping[str, tuple[Between, ...]]
    norm: Between
    weights: Mapping[str, Vector] | None


def begin(mixture: Mixture) -> dict[str, Vector]:
    """The weights before the first step. No two are equal."""
    numbers = iter(range(1, 1000))
    return {name: tuple(Fraction(next(numbers)) for _ in range(size)) for name, size in mixture.sizes.items()}


def expected(mixture: Mixture, policy: str) -> list[Expected]:
    """The expected results of each step, those before saving first."""
    before, after = mixture.parts()
    weights = begin(mixture)
    told = list(_trained(mixture, mixture.mesh, before, policy, weights))
    if mixture.loaded is not None:
        told += _trained(mixture, mixture.later_mesh, after, policy, weights)
    return told


def _trained(
    mixture: Mixture, mesh: Mesh, steps: Sequence[Sequence[Parts]], policy: str, weights: dict[str, Vector]
) -> Iterator[Expected]:
    """The expected results of each step on one mesh. Changes ``weights``."""
    divisors = {"dense": mesh.world_size, "experts": divisor(mesh, policy)}
    for parts in steps:
        whole = {
            name: gradient([parts[rank][name] for rank in mixture.holders(name, mesh)], divisors[name.split(".")[0]])
            for name in mixture.sizes
        }
        squared = squared_norm(whole.values())
        factor = _factor(squared, mixture.max_norm)
        for name, change in whole.items():
            weights[name] = tuple(weight - RATE * each for weight, each in zip(weights[name], change, strict=True))
        yield Expected(
            {name: tuple(_times(each, factor) for each in change) for name, change in whole.items()},
            _root(squared, ROUNDED),
            dict(weights) if mixture.max_norm is None else None,
        )


def _root(squared: Fraction, error: Fraction) -> Between:
    """The root, with bounds for this relative error."""
    low = Fraction(isqrt(int(squared * _DIGITS**2)), _DIGITS)
    return Between(low * (1 - error), (low + Fraction(1, _DIGITS)) * (1 + error))


def _factor(squared: Fraction, power: int | None) -> Between:
    """The factor of clipping; exactly 1 if the norm is well below the limit."""
    one = Fraction(1)
    if power is None or not squared:
        return Between(one, one)
    norm, limit = _root(squared, ROUNDED), Fraction(2) ** power
    return Between(min(one, limit / (norm.high + EPSILON) * (1 - ROUNDED)), min(one, limit / norm.low * (1 + ROUNDED)))


def _times(value: Fraction, factor: Between) -> Between:
    """The product. Gradients are not negative."""
    return Between(value * factor.low, value * factor.high)
