"""A backend of Hypothesis that draws each example independently.

By default, Hypothesis makes five of six examples from the previous one, by copying one part over another. That helps to
find equal parts, which are rare by chance. But our strategies draw equal parts on purpose, and a mutated program is
much like its origin. Of 100 examples, only about 65 differed, and the copies showed little new. `docs/campaigns.md` has
figures on how much more reliably faults are found with independent examples.
"""

from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.strategies import SearchStrategy

INDEPENDENT = "lockstep-independent"
T = TypeVar("T")


class IndependentProvider(HypothesisProvider):
    """Draws as Hypothesis does, but is not Hypothesis' own backend, so that it leaves examples unchanged.

    It draws no constants from the source of imported modules, because then the meaning of a seed would depend on
    imports.
    """

    def _maybe_draw_constant(self, *arguments: Any, **named: Any) -> None: ...


AVAILABLE_PROVIDERS[INDEPENDENT] = IndependentProvider


def sample(strategy: SearchStrategy[T], count: int, seed_value: int = 0) -> list[T]:
    """So many examples as a law with this strategy would get; always the same for one seed."""
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
