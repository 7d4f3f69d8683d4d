"""A checkpoint as a caller keeps it: a file of weights and of everything else, from one world to another."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worlds import devices


def write(state: Any) -> npt.NDArray[np.uint8]:
    """The bytes of a file, as `torch.save` writes it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return np.frombuffer(buffer.getvalue(), np.uint8).copy()


def read(text: str) -> tuple[Any, Any]:
    """Weights and the rest. Where they go by name, the last is first now: a file promises no order of names."""
    here = {"cuda:0": devices.place()}  # rank 0 wrote it
    weights, rest = torch.load(io.BytesIO(base64.b64decode(text)), map_location=here, weights_only=False)
    if "parameters" in weights:
        weights = {**weights, "parameters": backwards(weights["parameters"])}
        rest = {**rest, "optimizer": backwards(rest["optimizer"])}
    return weights, rest


def backwards(named: Mapping[str, Any]) -> dict[str, Any]:
    """The same mapping, in the other order."""
    return {name: named[name] for name in reversed(list(named))}
