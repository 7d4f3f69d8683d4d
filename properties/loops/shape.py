"""Recognize a class that is a training loop, and the arguments of its constructor."""

import inspect
from collections.abc import Mapping
from typing import Any

ARGUMENTS = ("model", "optimizer", "scheduler", "max_norm", "accumulate")


def arguments(implementation: Any) -> tuple[str, ...]:
    """The names of `ARGUMENTS` that it takes."""
    try:
        there = inspect.signature(implementation).parameters
    except (TypeError, ValueError):
        return ()
    return tuple(name for name in ARGUMENTS if name in there)


def seen_of(implementation: Any) -> Mapping[str, Any]:
    """A description of a training loop without constructing it, with the fields of `properties.claim.Shape`.

    Empty for other code. A loop has a `train_step`, and its constructor takes a model and an optimizer. A function that
    makes a loop must claim so.
    """
    claims = getattr(implementation, "claims", None)
    told = claims.get("loop") if isinstance(claims, Mapping) else None
    takes = arguments(implementation)
    trains = inspect.isclass(implementation) and hasattr(implementation, "train_step")
    if not (told or (trains and {"model", "optimizer"} <= set(takes) and told is not False)):
        return {}
    return {"is_loop": True, "takes_scheduler": "scheduler" in takes, "takes_max_norm": "max_norm" in takes}
