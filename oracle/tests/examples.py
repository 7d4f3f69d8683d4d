"""How many examples a test on drawn data has."""

from collections.abc import Collection

from hypothesis import HealthCheck, settings

PROFILE = 500  # examples of a law in the profile of CI


def examples(count: int, suppress_health_check: Collection[HealthCheck] = ()) -> settings:
    """So many; in a profile that has k times as many examples as CI's, k times as many. So `nightly` has ten times as
    many, drawn anew from the seed that it prints.
    """
    times = max(1, settings().max_examples // PROFILE)
    return settings(max_examples=count * times, deadline=None, suppress_health_check=suppress_health_check)
