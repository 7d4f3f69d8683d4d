"""Recognize a class that wraps a model of dense parameters and experts, and what it offers."""

import inspect
from collections.abc import Mapping
from typing import Any

ARGUMENT = "process_groups"  # by the name of each parameter, the process group of the ranks that have it


def seen_of(implementation: Any) -> Mapping[str, Any]:
    """Its description without making one, in the words of `properties.claim.Shape`; empty for any other code.

    The constructor of such a class takes `process_groups`. A function says by its claims that it makes one.
    """
    claims = getattr(implementation, "claims", None)
    told = claims.get("experts") if isinstance(claims, Mapping) else None
    try:
        takes = inspect.isclass(implementation) and ARGUMENT in inspect.signature(implementation).parameters
    except (TypeError, ValueError):
        takes = False
    if not (told or (takes and told is not False)):
        return {}
    has = {name: callable(getattr(implementation, name, None)) for name in ("clip_grad_norm_", "load_full")}
    saves = has["load_full"] and callable(getattr(implementation, "full_parameters", None))
    return {"has_experts": True, "clips": has["clip_grad_norm_"], "saves_all": saves}
