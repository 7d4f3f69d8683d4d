"""The gloo world: one warm process per rank, real sockets, real autograd threads. See `worlds.pool`."""

from lockstep.worlds.pool import PoolWorld
from lockstep.worlds.serving import Setup


class GlooWorld(PoolWorld):
    """See `worlds.contract.World`. With the device "cuda", ranks put tensors on the GPUs, several to one if need be."""

    def __init__(self, limit: float = 30.0, device: str = "cpu", memory: int | None = None) -> None:
        super().__init__(Setup("gloo", device, limit=limit), memory=memory)
