"""Uses of a sharded optimizer by the caller: steps with a closure, schedules, saved state, and observed state."""

import copy
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from lockstep.properties.claims import SAVED_BY

LOSS = 3.0  # the loss that each closure returns


def with_closure(optimizer: Any, parameters: Iterable[nn.Parameter]) -> list[str]:
    """Step with a closure. The gradients exist only after the closure has run, as if it ran backward.

    Returns the faults that a caller would see.
    """
    kept = {parameter: parameter.grad for parameter in parameters}
    runs, loss = [], torch.tensor(LOSS)
    for parameter in kept:
        parameter.grad = None

    def closure() -> torch.Tensor:
        runs.append(torch.is_grad_enabled())
        for parameter, gradient in kept.items():
            parameter.grad = gradient
        return loss

    returned = optimizer.step(closure)
    for parameter, gradient in kept.items() if not runs else ():
        parameter.grad = gradient
    found = [f"step(closure) runs the closure {len(runs)} times; it must run it once"] * (len(runs) != 1)
    found += ["step(closure) runs the closure without autograd, so that it can have no backward"] * (not all(runs))
    if not _is_the_loss(returned):
        found += [f"step(closure) returns {returned!r}; it must return {LOSS}, the closure's loss"]
    return found


def _is_the_loss(returned: Any) -> bool:
    try:
        return float(returned) == LOSS
    except (TypeError, ValueError, RuntimeError):
        return False


class _Sets(LRScheduler):
    """A scheduler that sets exactly these learning rates."""

    def __init__(self, optimizer: Any, rates: Sequence[float]) -> None:
        self.rates = rates
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [*self.rates]


def schedule(optimizer: Any, rates: Sequence[float]) -> None:
    """Set the learning rate of each group as torch's schedulers do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns if the schedule comes before the first step
        _Sets(optimizer, rates)


def zeroes(optimizer: Any) -> bool:
    """True if the optimizer has a `zero_grad` that takes ``set_to_none``."""
    try:
        inspect.signature(optimizer.zero_grad).bind(set_to_none=True)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def saved_state(optimizer: Any, by: str | None) -> Any:
    """A copy of its state: each rank's own, or the state of all ranks.

    Rank 0 has the latter after `consolidate_state_dict`, if that method exists, and sends it to all ranks.
    """
    if by != SAVED_BY[-1]:
        return copy.deepcopy(optimizer.state_dict())
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict()
    held = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def full_state(optimizers: Iterable[Any], named: Mapping[str, nn.Parameter]) -> dict[str, Mapping[str, Any]] | None:
    """The state that all ranks together hold for each parameter, as far as it is stored under the parameter itself.

    None if no rank stores any so, for example because the optimizer steps tensors of its own.
    """
    held = {parameter: state for each in optimizers for parameter, state in _states(each) if state}
    own = {name: dict(held[parameter]) for name, parameter in named.items() if parameter in held}
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    found = {name: state for each in reversed(ranks) for name, state in each.items()}
    return found or None


def _states(optimizer: Any, depth: int = 2) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
    """The state by parameter of an optimizer and of the optimizers in its attributes."""
    state = getattr(optimizer, "state", None)
    yield from state.items() if isinstance(state, Mapping) else ()
    for kept in getattr(optimizer, "__dict__", {}).values() if depth else ():
        for each in kept.values() if isinstance(kept, dict) else kept if isinstance(kept, list | tuple) else (kept,):
            if isinstance(each, torch.optim.Optimizer):
                yield from _states(each, depth - 1)
