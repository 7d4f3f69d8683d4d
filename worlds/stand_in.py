"""Whatever backend a program asks for, it gets the world's own, and sees the name of a real one."""

from typing import Any

from torch.distributed import distributed_c10d as c10d


def stand_in(backend: str, shown: str = "gloo") -> None:
    """From now on, `init_process_group` and `new_group` of this process make groups of ``backend``, shown as another.

    Shown as gloo, since that is what programs on CPU tensors run on elsewhere; some of torch.distributed
    (monitored_barrier) is there for it only. Without this, ``new_group(backend="gloo")``, as for a checkpoint's own
    group, would go past the world.
    """
    create = c10d._new_process_group_helper

    def ours(size: int, rank: int, members: list[int], asked: str, *rest: Any, **options: Any) -> tuple[Any, Any]:
        for name in (part.rpartition(":")[2].lower() for part in str(asked).split(",")):
            if name not in c10d.Backend.backend_list:
                raise RuntimeError(f"Unknown c10d backend type {name.upper()}")
        group, store = create(size, rank, members, backend, *rest, **options)
        if group in c10d._world.pg_map:  # not where this rank is no member
            c10d._world.pg_map[group] = (shown, c10d._world.pg_map[group][1])
        return group, store

    c10d._new_process_group_helper = ours
