"""Examples that are drawn independently of one another: a backend of Hypothesis'.

By itself Hypothesis makes five of six examples from the one before, by putting a part of it in the place of another. It
is a way to equal parts, which are rare by chance; but our strategies draw these on purpose, and a program and what is
made from it are much alike: of 100 examples some 65 differed, and what the first did not show the others did not. How
much more surely faults are found stands in `docs/campaigns.md`.
"""

from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.strategies import SearchStrategy

INDEPENDENT = "lockstep-independent"
T = TypeVar("T")


class IndependentProvider(HypothesisProvider):
    """Draws as Hypothesis does, which leaves alone what is drawn by a backend other than its own.

    But no constants from the source of what happens to be imported: a seed would mean something else after each import.
    """

    def _maybe_draw_constant(self, *arguments: Any, **named: Any) -> None: ...


AVAILABLE_PROVIDERS[INDEPENDENT] = IndependentProvider


def sample(strategy: SearchStrategy[T], count: int, seed_value: int = 0) -> list[T]:
    """So many of what a law that has this strategy would be given; of one seed always the same."""
    found: list[T] = []

    @seed(seed_value)
    @settings(
        max_examples=count,
        backend=INDEPENDENT,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(value: T) -> None:
        found.append(value)

    draw()
    return found
