"""Examples differ, for Hypothesis leaves them alone."""

from properties import adapter
from properties.catalogue import every_law
from properties.implementations import described
from properties.search import search
from properties.trial import Trial
from worlds.contract import World

MEAN = every_law()["test_gradients_equal_the_mean_over_ranks"]
NAME = "impls.static_buckets:StaticBuckets"


def test_nearly_all_examples_differ(sim: World) -> None:
    assert search(MEAN, Trial(described(NAME, adapter.describe(NAME)), sim), 100, 0).examples > 95
