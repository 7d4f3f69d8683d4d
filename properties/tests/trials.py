"""Trials of what is named, and whether this run has time to try everything on everything."""

from typing import Any

from hypothesis import settings

from lockstep.properties.implementations import described
from lockstep.properties.ranks.description import describe
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import World

NIGHTLY = settings.get_current_profile_name().startswith("nightly")


def trial_of(name: str, world: World, **options: Any) -> Trial:
    """An implementation on a world, looked at in this process."""
    return Trial(described(name, describe(name)), world, **options)
