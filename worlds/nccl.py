"""The NCCL world: one warm process per rank, each with a GPU of its own. See `worlds.pool`.

NCCL refuses two ranks of one host on one GPU. With ``ranks_per_gpu`` above 1 each process is given a host identity of
its own (NCCL_HOSTID), so that its ranks talk over sockets as hosts do. That is slow, and tells nothing about NVLink.
Setting up a communicator takes long. So each is kept: one per number of ranks, and one per group's members.
`docs/what-runs.md` lists programs that ran on a GPU; `python -m lockstep.worlds.tests.on_gpus` runs them again.
"""

from lockstep.worlds.pool import PoolWorld
from lockstep.worlds.serving import Setup


class NcclWorld(PoolWorld):
    """See `worlds.contract.World`. It has as many ranks as the GPUs hold."""

    def __init__(self, gpus: int, ranks_per_gpu: int = 1, limit: float = 60.0, memory: int | None = None) -> None:
        setup = Setup("nccl", "cuda", limit=limit, hosts_apart=ranks_per_gpu > 1, keeps_groups=True)
        super().__init__(setup, gpus * ranks_per_gpu, memory)
        self.ranks_per_gpu = ranks_per_gpu
