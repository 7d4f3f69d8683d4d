"""A checkpoint: weights and all other state, kept in memory or in a file that moves from one world to another."""

import base64
import copy
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from lockstep.properties.ranks import adapter
from lockstep.worlds import devices


def weights_of(model: nn.Module, wrapped: Any, offers: frozenset[str]) -> Mapping[str, Any]:
    """A copy of the model's state dict.

    If ``wrapped`` loads full tensors (`properties.sharded`), it holds the full ``parameters`` or a handle to them
    instead, and the ``buffers`` that a state dict has.
    """
    state = model.state_dict()
    if "load_full" not in offers:
        return copy.deepcopy(state)
    whole = "full_parameters" in offers
    parameters = adapter.parameters_to_save(wrapped) if whole else dict(model.named_parameters())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in state}
    return {"parameters": kept(parameters), "buffers": copy.deepcopy(buffers)}


def kept(told: Any) -> Any:
    """A copy of the values. A handle is returned as it is."""
    return told if adapter.is_handle(told) else copy.deepcopy(told)


def ended(saved: tuple[Any, Any]) -> tuple[Any, Any]:
    """The weights and the rest with all handles waited for, so that saving has ended."""
    weights, rest = saved
    if weights is not None and "parameters" in weights:
        weights = {**weights, "parameters": adapter.as_named(adapter.ended(weights["parameters"]))}
    if rest is not None and "optimizer" in rest:
        rest = {**rest, "optimizer": adapter.ended(rest["optimizer"])}
    return weights, rest


def load_weights(
    model: nn.Module, wrapped: Any, offers: frozenset[str], weights: Mapping[str, Any], states: Any
) -> None:
    """Load the result of `weights_of`, and the optimizer ``states`` if ``wrapped`` has a `load_full`."""
    if "load_full" not in offers:
        model.load_state_dict(weights)
        return
    wrapped.load_full(weights["parameters"], states)
    for name, buffer in model.named_buffers():
        if name in weights["buffers"]:
            buffer.copy_(weights["buffers"][name])


def write(state: Any) -> npt.NDArray[np.uint8]:
    """The bytes that `torch.save` writes to a file."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return np.frombuffer(buffer.getvalue(), np.uint8).copy()


def read(text: str) -> tuple[Any, Any]:
    """The weights and the rest. Mappings by name are reversed, because a file promises no order of names."""
    here = {"cuda:0": devices.place()}  # the device of rank 0, which wrote the file
    weights, rest = torch.load(io.BytesIO(base64.b64decode(text)), map_location=here, weights_only=False)
    if "parameters" in weights:
        weights = {**weights, "parameters": backwards(weights["parameters"])}
        rest = {**rest, "optimizer": backwards(rest["optimizer"])}
    return weights, rest


def backwards(named: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping in reversed order."""
    return {name: named[name] for name in reversed(list(named))}
