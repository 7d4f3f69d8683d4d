"""A checkpoint as a caller keeps it: a file of weights and of everything else, from one world to another."""

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
    """A copy of the model's state dict; or, where ``wrapped`` takes up what is whole (`properties.sharded`), of all its
    ``parameters``, whole or a handle, and of the ``buffers`` that a state dict has.
    """
    state = model.state_dict()
    if "load_full" not in offers:
        return copy.deepcopy(state)
    whole = "full_parameters" in offers
    parameters = adapter.parameters_to_save(wrapped) if whole else dict(model.named_parameters())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in state}
    return {"parameters": kept(parameters), "buffers": copy.deepcopy(buffers)}


def kept(told: Any) -> Any:
    """A copy of what was told; a handle as it is."""
    return told if adapter.is_handle(told) else copy.deepcopy(told)


def ended(saved: tuple[Any, Any]) -> tuple[Any, Any]:
    """Weights and the rest, once saving has ended, where an implementation has returned handles."""
    weights, rest = saved
    if weights is not None and "parameters" in weights:
        weights = {**weights, "parameters": adapter.as_named(adapter.ended(weights["parameters"]))}
    if rest is not None and "optimizer" in rest:
        rest = {**rest, "optimizer": adapter.ended(rest["optimizer"])}
    return weights, rest


def load_weights(
    model: nn.Module, wrapped: Any, offers: frozenset[str], weights: Mapping[str, Any], states: Any
) -> None:
    """Takes up what `weights_of` gave; and ``states``, as `properties.sharded` says, if ``wrapped`` takes up those."""
    if "load_full" not in offers:
        model.load_state_dict(weights)
        return
    wrapped.load_full(weights["parameters"], states)
    for name, buffer in model.named_buffers():
        if name in weights["buffers"]:
            buffer.copy_(weights["buffers"][name])


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
