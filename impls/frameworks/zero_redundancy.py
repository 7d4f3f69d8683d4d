"""torch's ZeRO-1: DistributedDataParallel, with `ZeroRedundancyOptimizer` in the place of the caller's optimizer.

Each parameter belongs whole to one rank, which steps it and broadcasts it. Gradients are DDP's, whole on every rank.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from lockstep.impls.wrapper import torch_groups


class ZeroRedundancy(DistributedDataParallel):
    """Both classes with their defaults: every trained parameter takes part on every rank, and all have one dtype."""

    claims = {
        "accumulation": True,
        "several_forwards": True,
        "backwards": "in no_sync",
        "replaced_gradients": True,
        "outside_reads": True,
        "losses_read": True,
        "double_backward": True,
        "averaging": "multiply by reciprocal then sum",
        "stage": 1,
        "same_bits": True,
        "reloads": False,  # torch 2.13: state that a file has not stays (docs/findings)
        "swaps_weights": True,
        "several_optimizers": True,
        "writes_weights": True,
        "acts_alone": True,
        "copied_models": True,
        "leaves_random_numbers": True,
        "callers_hooks": True,
        "schedule": "all-reduce",
        "cost": True,
        "other_models": True,
        "overlaps": True,
    }
    options: dict[str, Any] = {}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb=bucket_cap_mb)
        self.named = dict(module.named_parameters(remove_duplicate=False))
        self.optimizers: list[ZeroRedundancyOptimizer] = []

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> ZeroRedundancyOptimizer:
        """Its groups are torch's."""
        optimizer = ZeroRedundancyOptimizer(torch_groups(groups, self.named), kind, **self.options, **defaults)
        self.optimizers.append(optimizer)
        return optimizer

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Whole on every rank."""
        return {name: parameter.detach() for name, parameter in self.named.items()}

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        """Whole on every rank."""
        return {name: parameter.grad for name, parameter in self.named.items()}

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Consolidated on rank 0, which hands it to all."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for optimizer in self.optimizers:
            optimizer.consolidate_state_dict(to=0)
            states = [optimizer.state_dict()["state"] if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(states, src=0)
            assert states[0] is not None
            found |= {name: states[0].get(place, {}) for name, place in self._places(optimizer).items()}
        return found

    def load_full(
        self, parameters: Mapping[str, torch.Tensor], optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None
    ) -> None:
        """Each rank keeps of the whole state what it owns."""
        with torch.no_grad():
            for name, values in parameters.items():
                self.named[name].copy_(values)
        told = {name: dict(values) for name, values in (optimizer_state or {}).items() if values}
        for optimizer in self.optimizers:
            groups, start = [], 0
            for group in optimizer.param_groups:
                rest = {key: value for key, value in group.items() if key != "params"}
                groups.append({**rest, "params": list(range(start, start + len(group["params"])))})
                start += len(group["params"])
            state = {place: told[name] for name, place in self._places(optimizer).items() if name in told}
            optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _places(self, optimizer: ZeroRedundancyOptimizer) -> dict[str, int]:
        """A state dict numbers parameters through the groups."""
        in_order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        numbers = {parameter: number for number, parameter in enumerate(in_order)}
        return {name: numbers[parameter] for name, parameter in self.named.items() if parameter in numbers}


class ZeroRedundancyBucketView(ZeroRedundancy):
    """With ``parameters_as_bucket_view``: a rank's parameters are broadcast as one bucket."""

    options = {"parameters_as_bucket_view": True}
