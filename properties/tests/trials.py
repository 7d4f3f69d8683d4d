from typing import Any

from properties.implementations import described
from properties.ranks.description import describe
from properties.trial import Trial
from worlds.contract import World


def trial_of(name: str, world: World, **options: Any) -> Trial:
    """An implementation on a world, looked at in this process."""
    return Trial(described(name, describe(name)), world, **options)
