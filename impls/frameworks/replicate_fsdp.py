"""torch's other `replicate`, which is made of FSDP2: units whose parameters stay whole, and are all-reduced together.

It has no page of its own; its docstring and those of `FSDPModule`, whose methods it has, are what it promises.
"""

import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh

from lockstep.impls.frameworks.fsdp2 import FSDP2
from lockstep.impls.wrapper import broadcast_from_rank_zero


class ReplicateFSDP(FSDP2):
    """On every submodule and on the root, with its defaults. Ranks must use the same units, as of FSDP2."""

    # It shares defects of FSDP2 (docs/findings): it forgets a step after an evaluation, brings dropped windows back,
    # loses a loss of gradients in the first step, and synchronizes nothing if a view is changed in place. It shards
    # nothing, so that there is nothing to gather.
    claims = {**FSDP2.claims, "stage": 0, "replicas": False, "schedule": None}

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        broadcast_from_rank_zero(module)
        device = next(module.parameters()).device.type
        mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("replicate",))
        for unit in module.children():
            replicate(unit, mesh=mesh)
        self.module = replicate(module, mesh=mesh)
        self.sharded = dict(module.named_parameters(remove_duplicate=False))
        self._synchronizes = True
        self.optimizers = []
