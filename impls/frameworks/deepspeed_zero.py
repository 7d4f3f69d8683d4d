"""DeepSpeed's engine at ZeRO's stages 1 to 3, with the caller's optimizer. They need the package deepspeed.

The engine is called, backward runs, the engine steps. At stage 0 nobody can call `backward` of the loss itself:
DeepSpeed refuses it and asks for `engine.backward(loss)`, which no program of ours calls.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import torch_groups

with contextlib.suppress(ImportError):  # claims can be read without it
    import deepspeed
    from deepspeed.utils import (
        safe_get_full_grad,
        safe_get_full_optimizer_state,
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
    )

    # Its all-reduce for inference would be compiled first, for longer than a rank is waited for.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

_DOCUMENTED = "https://deepspeed.readthedocs.io/en/latest/training.html"
_STATE = "https://deepspeed.readthedocs.io/en/latest/zero3.html"
_CONFIG = "https://www.deepspeed.ai/docs/config-json/"
_HOOKED = f"backward is followed by hooks on outputs; documented is `engine.backward(loss)`: {_DOCUMENTED}"
_SIZES = ("reduce_bucket_size", "allgather_bucket_size")  # of buffers that take gigabytes as they come


class _AllRanks:
    """The unit of model parallelism that DeepSpeed may be given: every rank is data-parallel."""

    get_data_parallel_group = staticmethod(lambda: dist.group.WORLD)
    get_data_parallel_world_size = staticmethod(lambda: dist.get_world_size())
    get_data_parallel_rank = staticmethod(lambda: dist.get_rank())
    get_model_parallel_group = staticmethod(lambda: None)
    get_model_parallel_world_size = staticmethod(lambda: 1)
    get_model_parallel_rank = staticmethod(lambda: 0)


class DeepSpeedZeRO1(nn.Module):
    """Stage 1: optimizer state is sharded."""

    claims: dict[str, Any] = {
        "accumulation": True,
        "stage": 1,
        "float64": False,
        "adds_to_averages": False,
        "outlive_steps": False,
        "idle_steps": False,
        "output_classes": False,
        "in_place": False,
        "reloads": False,
    }
    why: dict[str, str] = {
        "accumulation": f"`no_sync`, or `set_gradient_accumulation_boundary`: {_DOCUMENTED}",
        "stage": f"`zero_optimization`: {_CONFIG}",
        "float64": "declined: it is stepped in float32 (docs/findings)",
        "adds_to_averages": f"declined: each window ends in a step, which zeroes gradients: {_DOCUMENTED}",
        "output_classes": f"declined: {_HOOKED}",
        "in_place": f"declined: {_HOOKED}",
        "outlive_steps": f"declined: the engine's step zeroes gradients: {_DOCUMENTED}",
        "idle_steps": f"declined: `engine.step` is for after forward and backward: {_DOCUMENTED}",
        "reloads": "declined: the documentation loads checkpoints from files of the engine's: "
        "https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html",
    }
    stage = 1

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner, self.steps = module, 0
        self.named = dict(module.named_parameters(remove_duplicate=False))
        self.shapes = {name: parameter.shape for name, parameter in self.named.items()}

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> Any:
        """The engine is made of the optimizer."""
        os.environ |= {"LOCAL_RANK": "0", "RANK": str(dist.get_rank()), "WORLD_SIZE": str(dist.get_world_size())}
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": self.stage, **dict.fromkeys(_SIZES, 2**16)},
            "zero_allow_untested_optimizer": True,
        }
        self.plain = kind(torch_groups(groups, self.named), **defaults)
        self.param_groups: list[dict[str, Any]] = [*self.plain.param_groups]  # DeepSpeed takes empty ones away
        told = {"model": self.inner, "optimizer": self.plain, "config": config, "mpu": _AllRanks()}
        self.engine = deepspeed.initialize(**told)[0]
        return self

    def step(self) -> None:
        """Of the engine."""
        self.engine.step()
        self.steps += 1

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The engine's forward."""
        return self.engine(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Of the engine, for this stage. It may not be entered twice."""
        with contextlib.nullcontext() if self.engine.inside_no_sync_ctxt else self.engine.no_sync():
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the engine and of its optimizer."""
        self.engine.zero_grad()
        self.engine.optimizer.zero_grad()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Refused: the engine clips in its step, as its configuration says."""
        raise NotImplementedError("DeepSpeed's engine clips in its step, by a norm of its configuration")

    def unscale_(self, scale: float) -> bool:
        """Refused: the engine scales losses itself, where its configuration asks for fp16."""
        raise NotImplementedError("DeepSpeed's engine scales losses itself")

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Whole on every rank."""
        return {name: parameter.detach() for name, parameter in self.named.items()}

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        """By `safe_get_full_grad`, which has them from backward to the step."""
        found: dict[str, torch.Tensor | None] = dict.fromkeys(self.named)
        for name, parameter in self.named.items():
            if parameter.requires_grad:
                with contextlib.suppress(ValueError):
                    found[name] = safe_get_full_grad(parameter)
        return found

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By `safe_get_full_optimizer_state`; step counts as the plain optimizer has them."""
        held: Mapping[str, Any] = next(iter(self.plain.state.values()), {})
        found: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.named}
        for name, parameter in self.named.items():
            for key, value in held.items() if self.steps and parameter.requires_grad else ():
                if isinstance(value, torch.Tensor):
                    whole = key == "step" or value.dim() == 0
                    found[name][key] = value if whole else safe_get_full_optimizer_state(parameter, key)
        return found

    @torch.no_grad()
    def load_full(
        self, parameters: Mapping[str, torch.Tensor], optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None
    ) -> None:
        """By `safe_set_full_fp32_param` and `safe_set_full_optimizer_state`, which there is from the first step on."""
        if not self.steps and any((optimizer_state or {}).values()):
            raise NotImplementedError("DeepSpeed loads optimizer state into a new engine from files of its own alone")
        for name, values in parameters.items():
            self.set(name, values)
            if self.named[name].requires_grad:
                safe_set_full_fp32_param(self.named[name], values)
                for key, value in (optimizer_state or {}).get(name, {}).items():
                    if value.dim():
                        safe_set_full_optimizer_state(self.named[name], value, key)

    def set(self, name: str, values: torch.Tensor) -> None:
        """Write what forward reads."""
        self.named[name].copy_(values)


class DeepSpeedZeRO2(DeepSpeedZeRO1):
    """Stage 2: gradients too, so that micro-batches are reduced one by one."""

    claims = {**DeepSpeedZeRO1.claims, "stage": 2, "silent_no_sync": False}
    why = {**DeepSpeedZeRO1.why, "silent_no_sync": f"declined: each micro-batch is reduced: {_CONFIG}"}
    stage = 2

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """The boundary of accumulation, which the caller may set."""
        before = self.engine.is_gradient_accumulation_boundary()
        self.engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self.engine.set_gradient_accumulation_boundary(before)


class DeepSpeedZeRO3(DeepSpeedZeRO2):
    """Stage 3: parameters too."""

    claims = {**DeepSpeedZeRO2.claims, "stage": 3}
    stage = 3

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """By `GatheredParameters`."""
        with deepspeed.zero.GatheredParameters(list(self.named.values())):
            return {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def set(self, name: str, values: torch.Tensor) -> None:
        """By `GatheredParameters`, from rank 0."""
        with deepspeed.zero.GatheredParameters([self.named[name]], modifier_rank=0):
            if dist.get_rank() == 0:
                self.named[name].copy_(values)
