"""The shares of a law's time: drawing, the oracle, the world, judging."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from lockstep.properties import test_mean
from lockstep.properties.expected import expect, known
from lockstep.properties.implementations import look_up
from lockstep.properties.judging import judge
from lockstep.properties.law import law_of
from lockstep.properties.searching.search import search
from lockstep.properties.trial import Trial
from lockstep.worlds.sim.world import SimWorld

IMPLEMENTATION = "lockstep.impls.static_buckets:StaticBuckets"
EXAMPLES = 200


def measure(examples: int = EXAMPLES) -> tuple[int, dict[str, float]]:
    """Run the law of the mean on the simulated world; return the number of examples and the seconds of each part.

    "proof" is the oracle's as well: while drawing it proves that nothing rounds. What is in no other part is drawing.
    """
    seconds: dict[str, float] = defaultdict(float)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds[part] += time.perf_counter() - start

        return wrapper

    world = SimWorld()
    try:
        (implementation,) = look_up([IMPLEMENTATION], world)
        law, trial = law_of(test_mean.test_gradients_equal_the_mean_over_ranks), Trial(implementation, world)
        search(law, trial, examples // 10, seed_value=1)  # warms up
        with (
            mock.patch("lockstep.properties.strategies.scenarios.known", timed("proof", known)),
            mock.patch("lockstep.properties.trial.expect", timed("oracle", expect)),
            mock.patch("lockstep.properties.trial.Trial.run", timed("world", Trial.run)),
            mock.patch("lockstep.properties.judging.judge.values_equal", timed("judging", judge.values_equal)),
        ):
            start = time.perf_counter()
            found = search(law, trial, examples, seed_value=0)
            total = time.perf_counter() - start
    finally:
        world.close()
    seconds["drawing"] = total - sum(seconds.values())
    return found.examples, seconds


def lines(examples: int = EXAMPLES) -> Iterator[str]:
    """The shares, and what the oracle takes of the world's time."""
    examples, seconds = measure(examples)
    total = sum(seconds.values())
    each = f"{examples} examples of {1000 * total / examples:.1f} ms"
    yield f"The law of the mean, {IMPLEMENTATION.rpartition(':')[2]} on the simulated world, {each}:"
    words = {
        "drawing": "drawing (Hypothesis)",
        "proof": "oracle, while drawing: the proof that nothing rounds",
        "oracle": "oracle: the expectation",
        "world": "world",
        "judging": "judging",
    }
    for part, label in words.items():
        yield f"  {label:54}{100 * seconds[part] / total:5.1f} %"
    yield f"  {'oracle, both, of the world':54}{100 * (seconds['proof'] + seconds['oracle']) / seconds['world']:5.1f} %"
