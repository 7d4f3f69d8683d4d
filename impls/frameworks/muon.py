"""Distributed Muon as its author has it: each rank steps whole matrices in turn, and all gather them.

It needs the package muon-optimizer. Steps are held against the package's own Muon for one device, on gradients that are
averaged before.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

try:  # claims can be read without it
    from muon import MuonWithAuxAdam, SingleDeviceMuonWithAuxAdam
except ImportError:
    MuonWithAuxAdam = SingleDeviceMuonWithAuxAdam = torch.optim.Optimizer

_DOCUMENTED = "https://github.com/KellerJordan/Muon#usage"


def with_muon(params: Iterable[Any], **defaults: Any) -> list[dict[str, Any]]:
    """Groups of parameters that Muon is to step, with all options in each."""
    groups = [each if isinstance(each, Mapping) else {"params": [each]} for each in params]
    return [{**defaults, **group, "use_muon": True} for group in groups]


class PlainMuon(SingleDeviceMuonWithAuxAdam):
    """Muon for one device."""

    def __init__(self, params: Any, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(with_muon(params, lr=lr, momentum=momentum, weight_decay=weight_decay))


class DistributedMuonWithAdam(MuonWithAuxAdam):
    """`MuonWithAuxAdam`, of which Muon alone is asked for."""

    claims: Mapping[str, Any] = {"optimizers": (PlainMuon,), "outlive_steps": False}
    why: Mapping[str, str] = {
        "outlive_steps": "declined: a step with Nesterov momentum writes into the gradient, on the rank that steps it",
        "optimizers": f'`SingleDeviceMuonWithAuxAdam` is its "non-distributed variant": {_DOCUMENTED}',
    }

    def __init__(self, params: Any, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(with_muon(params, lr=lr, momentum=momentum, weight_decay=weight_decay))
