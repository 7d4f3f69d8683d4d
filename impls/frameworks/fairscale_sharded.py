"""fairscale's ZeRO-2: `ShardedDataParallel` around `OSS`. They need the package fairscale.

Each parameter belongs whole to one rank, to which its gradient is reduced, times 1/N. Others have no gradient then.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import torch_groups

with contextlib.suppress(ImportError):  # claims can be read without it
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

_WRAPPER = "https://fairscale.readthedocs.io/en/latest/api/nn/sharded_ddp.html"
_OPTIMIZER = "https://fairscale.readthedocs.io/en/latest/api/optim/oss.html"
_EVALUATES = "https://github.com/facebookresearch/fairscale/pull/587"


class FairscaleSharded(nn.Module):
    """With buckets, as it comes. The wrapper is made of the optimizer, and so when that is made."""

    claims: dict[str, Any] = {
        "accumulation": True,
        "freezing": True,
        "unfreezing": True,
        "eval_mode": False,
        "buffers": None,
        "adds_to_averages": False,
        "averaging": "multiply by reciprocal then sum",
        "stage": 2,
        "same_bits": True,
        "reloads": True,
        "writes_weights": True,
        "swaps_weights": True,
    }
    why: dict[str, str] = {
        "accumulation": f"`no_sync` disables gradient synchronization: {_WRAPPER}",
        "freezing": f"`auto_refresh_trainable` follows `requires_grad`: {_WRAPPER}",
        "unfreezing": f"`auto_refresh_trainable` follows `requires_grad`: {_WRAPPER}",
        "eval_mode": f"declined: it takes its hooks away in evaluation mode, and nothing is documented: {_EVALUATES}",
        "buffers": f"declined: they are broadcast before each forward, but not inside `no_sync`: {_WRAPPER}",
        "adds_to_averages": f"declined: after backward some ranks have no gradient to add to: {_WRAPPER}",
        "stage": f"it implements gradient sharding, and OSS shards the state: {_WRAPPER}",
        "same_bits": f"OSS wraps an arbitrary optimizer: {_OPTIMIZER}",
        "reloads": f"`load_state_dict` restores the groups and the shard: {_OPTIMIZER}",
        "writes_weights": "parameters are the module's own",
        "swaps_weights": "parameters are the module's own",
        "averaging": "as its code has it; the documentation does not say",
    }
    options: dict[str, Any] = {}

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module
        self.named = dict(module.named_parameters(remove_duplicate=False))

    def make_optimizer(
        self, kind: type[torch.optim.Optimizer], groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> Any:
        """The optimizer first, then the wrapper."""
        self.optimizer = OSS(torch_groups(groups, self.named), optim=kind, **defaults)
        # It warns: without `warn_on_trainable_params_changed` it misses what is trained again (docs/findings).
        self.wrapped = ShardedDataParallel(self.inner, self.optimizer, **self.options)
        return self.optimizer

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        return self.wrapped(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Of the wrapper."""
        with self.wrapped.no_sync():
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the wrapper, which zeroes its buckets too."""
        self.wrapped.zero_grad(set_to_none)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Of the optimizer, as the documentation of the wrapper asks."""
        norm: torch.Tensor = self.optimizer.clip_grad_norm(max_norm, norm_type)
        return norm

    def unscale_(self, scale: float) -> bool:
        """Divides what this rank owns, and asks all ranks whether what they hold is finite."""
        finite = torch.ones(())
        for parameter in self._owned():
            if parameter.grad is not None:
                parameter.grad /= scale
                finite *= parameter.grad.isfinite().all()
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        return bool(finite)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Whole on every rank."""
        return {name: parameter.detach() for name, parameter in self.named.items()}

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        """Of each parameter that of its owner."""
        own = set(self._owned())
        mine = {name: parameter.grad for name, parameter in self.named.items() if parameter in own}
        shares: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(shares, mine)
        return dict.fromkeys(self.named) | {name: each for share in shares for name, each in share.items()}

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Consolidated on every rank."""
        state = self.optimizer.state_dict(all_ranks=True)["state"]
        return {name: state.get(place, {}) for name, place in self._places().items()}

    def load_full(
        self, parameters: Mapping[str, torch.Tensor], optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None
    ) -> None:
        """Each rank keeps of the whole state what it owns."""
        with torch.no_grad():
            for name, values in parameters.items():
                self.named[name].copy_(values)
        told = {name: dict(values) for name, values in (optimizer_state or {}).items() if values}
        groups, start = [], 0
        for group in self.optimizer.param_groups:
            rest = {key: value for key, value in group.items() if key != "params"}
            groups.append({**rest, "params": list(range(start, start + len(group["params"])))})
            start += len(group["params"])
        state = {place: told[name] for name, place in self._places().items() if name in told}
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _owned(self) -> list[nn.Parameter]:
        """The parameters that this rank steps."""
        groups = self.optimizer.partition_parameters()[dist.get_rank()]
        return [parameter for group in groups for parameter in group["params"]]

    def _places(self) -> dict[str, int]:
        """A state dict numbers parameters through the groups."""
        in_order = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        numbers = {parameter: number for number, parameter in enumerate(in_order)}
        return {name: numbers[parameter] for name, parameter in self.named.items() if parameter in numbers}


class FairscaleUnbucketed(FairscaleSharded):
    """With `reduce_buffer_size=0`: each gradient is reduced alone, and then dropped where it is not owned."""

    options = {"reduce_buffer_size": 0}


def fairscale_oss(params: Any, optimizer_cls: type[torch.optim.Optimizer], **options: Any) -> Any:
    """`OSS` alone, a sharded optimizer whose gradients are averaged before."""
    return OSS(params, optim=optimizer_cls, **options)


fairscale_oss.claims = {"saved_by": "rank 0", "freezing": False}  # type: ignore[attr-defined]
fairscale_oss.why = {  # type: ignore[attr-defined]
    "freezing": f"declined: the caller must call `refresh_trainable`: {_OPTIMIZER}",
    "saved_by": f"`consolidate_state_dict` materializes the state on one rank: {_OPTIMIZER}",
}
