"""Prints how often what is drawn has each feature: ``python -m properties.strategies --examples 1000``."""

import argparse
from collections import Counter
from dataclasses import fields
from typing import Any

from oracle.program import DIVISORS
from properties.claims import Claims
from properties.expected import known
from properties.independent import sample
from properties.strategies import MOST_RANKS, scenarios
from properties.strategies.features import FEATURES

_NO_SCENARIOS = ("kernels", "differentiable")  # what is claimed by code that no program is drawn for
_PROMISES: dict[str, Any] = {
    field.name: True for field in fields(Claims) if field.default is False and field.name not in _NO_SCENARIOS
}
EVERYTHING = Claims(**_PROMISES, unused="untouched", buffers="initial", reentrant="any", joins=DIVISORS)


def shares(examples: int, claims: Claims = EVERYTHING) -> Counter[str]:
    """How many of so many scenarios have each feature, each number of ranks, and each kind of expectation."""
    counts: Counter[str] = Counter()
    for scenario in sample(scenarios(claims), examples):
        expected = known(scenario, claims)
        if expected is None:
            counts["neither, so left out"] += 1
        else:
            counts["every bit known" if expected.exact else "some values enclosed"] += 1
        counts[f"world size {scenario.world_size}"] += 1
        counts.update(name for name, feature in FEATURES.items() if feature.occurs(scenario))
        counts["drawn"] += 1
    return counts


def main() -> None:
    """Prints the shares in percent, where everything is claimed."""
    parser = argparse.ArgumentParser(prog="python -m properties.strategies", description=main.__doc__)
    parser.add_argument("--examples", type=int, default=1000, help="how many are drawn (default: %(default)s)")
    asked = parser.parse_args()
    if asked.examples < 1:
        parser.error(f"--examples {asked.examples}: at least 1")
    counts = shares(asked.examples)
    names = ["every bit known", "some values enclosed", "neither, so left out"]
    names += [f"world size {ranks}" for ranks in range(1, MOST_RANKS + 1)]
    for name in (*names, *FEATURES):
        print(f"{name:24}{100 * counts[name] / counts['drawn']:6.1f} %")


if __name__ == "__main__":
    main()
