"""A stand-in for any backend that a program asks for: the world's own, under the name of a real one."""

from collections.abc import Mapping
from typing import Any

from torch.distributed import distributed_c10d as c10d


def stand_in(backend: str, shown: str = "gloo", beside: Mapping[str, str] | None = None) -> None:
    """From now on, `init_process_group` and `new_group` of this process make groups of ``backend``, shown as another.

    ``beside``: names that a program may ask for, each with the backend that stands in for it. Groups are shown as gloo,
    because programs on CPU tensors run on it elsewhere, and some of torch.distributed (monitored_barrier) works only
    there. Without this, ``new_group(backend="gloo")``, for example for checkpoints, would go past the world.
    """
    create = c10d._new_process_group_helper

    def ours(size: int, rank: int, members: list[int], asked: str, *rest: Any, **options: Any) -> tuple[Any, Any]:
        names = [part.rpartition(":")[2].lower() for part in str(asked).split(",")]
        for name in names:
            if name not in c10d.Backend.backend_list:
                raise RuntimeError(f"Unknown c10d backend type {name.upper()}")
        own = (beside or {}).get(names[0]) if len(names) == 1 else None
        group, store = create(size, rank, members, own or backend, *rest, **options)
        if group in c10d._world.pg_map:  # not where this rank is no member
            c10d._world.pg_map[group] = (names[0] if own else shown, c10d._world.pg_map[group][1])
        return group, store

    c10d._new_process_group_helper = ours
