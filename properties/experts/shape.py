"""Recognize a class that wraps a model of dense parameters and experts, and its methods."""

import inspect
from collections.abc import Mapping
from typing import Any

# Takes a mapping from parameter names to the process group of the ranks that have the parameter.
ARGUMENT = "process_groups"


def seen_of(implementation: Any) -> Mapping[str, Any]:
    """A description of such a class without constructing it, with the fields of `properties.claim.Shape`.

    Empty for other code. The constructor of such a class takes `process_groups`. A function that makes one must claim
    so.
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
