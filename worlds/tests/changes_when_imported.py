"""A module that sets something for the whole process that imports it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
nn.Module.lockstep_oddity = None


def see(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What it has set."""
    return {"dtype": str(torch.get_default_dtype())}
