"""Plain layers that hold the parameters of a probe, for code that shards only known layers.

Each layer gets an input for which its output equals its weight bit for bit, so that the probe computes the same as
without layers. The inputs are: for a linear layer, the identity matrix; for an embedding, all row numbers in order; for
a layer norm without epsilon, +1 and -1 in turn. A layer adds up gradients, so a gradient of -0.0 becomes 0.0. None is
drawn for it.
"""

from typing import Any

import torch
from torch import nn

WEIGHT = "weight"  # the name of a parameter in its layer


def layer_of(parameter: nn.Parameter, index: int) -> nn.Module | None:
    """A plain layer whose weight is the parameter of that number; None if no plain layer has such a weight.

    Matrices become weights of linear layers and of embeddings in turn. Vectors of even length become weights of layer
    norms.
    """
    layer: Any = None
    if parameter.dim() == 2 and parameter.numel():
        rows, columns = parameter.shape
        made_of = (rows, columns) if index % 2 else (columns, rows)
        layer = (nn.Embedding if index % 2 else nn.Linear)(*made_of, **({} if index % 2 else {"bias": False}))
    elif parameter.dim() == 1 and parameter.numel() and len(parameter) % 2 == 0:
        layer = nn.LayerNorm(len(parameter), eps=0.0, bias=False)
    if layer is not None:
        layer.weight = parameter
    return layer


def weight_read(layer: nn.Module, index: int, told: torch.Size | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The weight of a layer of `layer_of`, or of the module that replaced it, as its forward reads it.

    ``told``, ``dtype``: the shape of the full weight, and its dtype.
    """
    device = next((each.device for each in layer.parameters()), torch.device("cpu"))
    if len(told) == 1:
        signs = torch.ones(told, dtype=dtype, device=device)
        signs[1::2] = -1
        read: torch.Tensor = layer(signs[None])[0] * signs
    elif index % 2:
        read = layer(torch.arange(told[0], device=device))
    else:
        read = layer(torch.eye(told[1], dtype=dtype, device=device)).T
    return read
