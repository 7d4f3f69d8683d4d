"""Recognize a class that deals samples to ranks, and the meaning of its constructor's arguments."""

import inspect
from collections.abc import Mapping
from typing import Any

# The meanings of constructor arguments, and their names. The first existing name is used.
ARGUMENTS = {
    "dataset": ("dataset", "data_source", "data"),
    "length": ("length", "num_samples", "dataset_size", "dataset_length", "total_samples"),
    "ranks": ("num_replicas", "world_size", "num_processes", "num_shards", "num_ranks", "dp_size"),
    "rank": ("rank", "process_index", "shard_index", "shard_id", "dp_rank"),
    "batch": ("batch_size", "micro_batch_size"),
    "shuffle": ("shuffle",),
    "seed": ("seed", "shuffle_seed"),
    "drop_last": ("drop_last",),
}
FIRST = (*ARGUMENTS["dataset"], *ARGUMENTS["length"])


def arguments(implementation: Any) -> dict[str, str]:
    """The names of the constructor's arguments, by meaning. For a function, its own arguments."""
    try:
        there = inspect.signature(implementation).parameters
    except (TypeError, ValueError):
        return {}
    found = {meaning: next((name for name in names if name in there), "") for meaning, names in ARGUMENTS.items()}
    return {meaning: name for meaning, name in found.items() if name}


def seen_of(implementation: Any) -> Mapping[str, Any]:
    """A description of a sampler without constructing it, with the fields of `properties.claim.Shape`.

    Empty for other code. A sampler can be iterated, and its first argument is a data set or the length of one. A
    function that makes a sampler must claim so, because nothing is known of its result.
    """
    claims = getattr(implementation, "claims", None)
    told = claims.get("sampler") if isinstance(claims, Mapping) else None
    try:
        first = next(iter(inspect.signature(implementation).parameters), "")
    except (TypeError, ValueError):
        return {}
    deals = inspect.isclass(implementation) and hasattr(implementation, "__iter__") and first in FIRST
    if not (told or (deals and told is not False)):
        return {}
    takes = arguments(implementation)
    return {
        "is_sampler": True,
        "takes_batch": "batch" in takes,
        "takes_shuffle": "shuffle" in takes,
        "takes_drop_last": "drop_last" in takes,
        "resumes": hasattr(implementation, "state_dict") and hasattr(implementation, "load_state_dict"),
        "gathers": hasattr(implementation, "gather_for_metrics"),
    }
