"""Multi-tensor kernels of other packages, where installed: apex's and TransformerEngine's are called alike."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

Kernel = Callable[..., Any]
# By name: where the kernels are, and where the function is that applies one to lists of tensors.
MULTI_TENSOR = {
    "apex": ("amp_C", "apex.multi_tensor_apply", "multi_tensor_applier"),
    "TransformerEngine": ("transformer_engine_torch", "transformer_engine.pytorch.optimizers", "multi_tensor_applier"),
}


def installed() -> dict[str, tuple[Any, Kernel]]:
    """By package, its kernels and what applies them; a package that cannot be imported is left out."""
    found = {}
    for package, (kernels, module, function) in MULTI_TENSOR.items():
        try:
            found[package] = (importlib.import_module(kernels), getattr(importlib.import_module(module), function))
        except Exception:  # an extension built for another torch fails in many ways
            continue
    return found


def scaled_copies(sources: list[list[torch.Tensor]], targets: list[list[torch.Tensor]]) -> dict[str, Kernel]:
    """By package, targets <- sources, through a product with 1; those that have it."""

    def bind(kernels: Any, apply: Kernel) -> Kernel:
        overflow = torch.zeros(1, dtype=torch.int32, device="cuda")
        return lambda k: apply(kernels.multi_tensor_scale, overflow, [sources[k], targets[k]], 1.0)

    return {name: bind(*both) for name, both in installed().items() if hasattr(both[0], "multi_tensor_scale")}


def norms(lists: list[list[torch.Tensor]]) -> dict[str, Kernel]:
    """By package, the 2-norm of a list."""

    def bind(kernels: Any, apply: Kernel) -> Kernel:
        overflow = torch.zeros(1, dtype=torch.int32, device="cuda")
        return lambda k: apply(kernels.multi_tensor_l2norm, overflow, [lists[k]], False)

    return {name: bind(*both) for name, both in installed().items() if hasattr(both[0], "multi_tensor_l2norm")}
