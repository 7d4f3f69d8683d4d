"""`torch.distributed.nn.functional`, torch's own differentiable collectives, as wrappers for P14."""

import torch
import torch.distributed as dist
from torch.distributed.nn import functional


class TorchCollectives:
    """torch's collectives with their defaults. Their result may be the input tensor, changed."""

    claims = {"collectives": ("all_reduce", "broadcast", "reduce_scatter", "all_gather"), "differentiable": True}

    @staticmethod
    def all_reduce(values: torch.Tensor, reduction: str, group: dist.ProcessGroup | None) -> torch.Tensor:
        """The sum, divided outside where the average is wanted."""
        result: torch.Tensor = functional.all_reduce(values, group=_whole(group))
        return result / dist.get_world_size(group) if reduction == "average" else result

    @staticmethod
    def broadcast(values: torch.Tensor, root: int, group: dist.ProcessGroup | None) -> torch.Tensor:
        """The values of the global rank ``root``."""
        result: torch.Tensor = functional.broadcast(values, root, group=_whole(group))
        return result

    @staticmethod
    def reduce_scatter(values: torch.Tensor, reduction: str, group: dist.ProcessGroup | None) -> torch.Tensor:
        """The list form."""
        shares = list(values.chunk(dist.get_world_size(group)))
        result: torch.Tensor = functional.reduce_scatter(torch.empty_like(shares[0]), shares, group=_whole(group))
        return result / dist.get_world_size(group) if reduction == "average" else result

    @staticmethod
    def all_gather(values: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        """The list form, put together."""
        return torch.cat(functional.all_gather(values, group=_whole(group)))


def _whole(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    return dist.group.WORLD if group is None else group
