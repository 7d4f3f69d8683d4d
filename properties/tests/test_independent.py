"""Examples differ, for Hypothesis leaves them alone."""

from hypothesis.internal.conjecture.providers import HypothesisProvider

from lockstep.properties.catalogue import every_law
from lockstep.properties.searching.search import search
from lockstep.properties.strategies.independent import IndependentProvider
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World

MEAN = every_law()["test_gradients_equal_the_mean_over_ranks"]
NAME = "lockstep.impls.static_buckets:StaticBuckets"


def test_nearly_all_examples_differ(sim: World) -> None:
    assert search(MEAN, trial_of(NAME, sim), 100, 0).examples > 95


def test_what_keeps_constants_out_is_still_what_hypothesis_calls_for_them() -> None:
    """It is no public method: under another name, constants would come back and seeds would mean something else."""
    assert "_maybe_draw_constant" in vars(IndependentProvider)
    assert "_maybe_draw_constant" in vars(HypothesisProvider)
