"""A user's own model in place of one of the real models.

``make()`` returns the model and a function ``sample``. ``sample(seed)`` returns a batch and a function that takes the
model's outputs and returns the loss, one number. A batch is a tensor, or a tuple or mapping of the model's arguments.
The same seed must give the same batch.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.ranks.lookup import NotFound, find
from lockstep.properties.ranks.probes import to_numpy
from lockstep.worlds.devices import place

RATE = 2**-10  # the learning rate of every optimizer, small so that no model diverges
MOST_ELEMENTS = 1_000_000
DTYPES = ("float32", "float64", "bfloat16", "float16")
_MAKES = "make() returns a module and a function; given a seed, that returns a batch and a function of the outputs"


def build(scenario: ModelScenario, rank: int) -> nn.Module:
    """The model in training mode, with initial values of a rank's own. The state of random numbers does not change."""
    return _made(scenario.yours, 1000 * (scenario.seed + 1) + rank)[0]


def _made(name: str, seed: int) -> tuple[nn.Module, Callable[[int], Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Any = find(name)()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module) and callable(made[1])):
        raise NotFound(f"{name}: {_MAKES}")
    return made[0].train().to(place()), made[1]


@lru_cache(maxsize=4)
def _sampler(name: str) -> Callable[[int], Any]:
    return _made(name, 0)[1]


def sample(scenario: ModelScenario, rank: int, number: int) -> tuple[Any, Callable[[Any], torch.Tensor]]:
    """A rank's batch with that number, and its loss function."""
    return _sampled(scenario.yours, 1 + (1000 * scenario.seed + number) * 100 + rank)


def _sampled(name: str, seed: int) -> tuple[Any, Callable[[Any], torch.Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found: Any = _sampler(name)(seed)
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[1])):
        raise NotFound(f"{name}: {_MAKES}")
    return found


def call(model: Any, batch: Any) -> Any:
    """The outputs for a batch."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


@contextlib.contextmanager
def outputs_of_modules(model: nn.Module) -> Iterator[list[tuple[str, Any]]]:
    """The outputs of the modules in the order in which they are computed: the module's name, and an array."""
    found: list[tuple[str, Any]] = []

    def note(_: nn.Module, __: Any, outputs: Any, name: str) -> None:
        found.extend((name, to_numpy(each)) for each in tree_leaves(outputs) if isinstance(each, torch.Tensor))

    hooks = [each.register_forward_hook(partial(note, name=name)) for name, each in model.named_modules() if name]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def wrong(name: str) -> str:
    """The error in a model, in words; empty if there is none. The model is made and run twice, as in a replay."""
    model, _ = _made(name, 0)
    size = sum(parameter.numel() for parameter in model.parameters())
    others = {str(each.dtype).removeprefix("torch.") for each in model.parameters()} - {*DTYPES}
    if not 0 < size <= MOST_ELEMENTS:
        return (
            f"the model has {size:,} elements in its parameters; from 1 to {MOST_ELEMENTS:,} are held against the laws"
        )
    if others:
        return f"parameters of {', '.join(sorted(others))} are not followed; {', '.join(DTYPES)} are"
    first, again = _run(name), _run(name)
    if not all(np.isfinite(values).all() for values in first.values()):
        return "its loss or a gradient is not finite on the first batch"
    for what, values in first.items():
        if again[what].tobytes() != values.tobytes():
            return (
                f"two runs from one seed differ in {what}: take all random numbers from torch, or from the seed given"
            )
    return ""


def _run(name: str) -> dict[str, Any]:
    """The loss and the gradients of one batch."""
    torch.manual_seed(1)
    model, _ = _made(name, 0)
    batch, loss_of = _sampled(name, 1)
    torch.set_num_threads(1)
    loss: Any = loss_of(call(model, batch))
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise NotFound(f"{name}: the loss must be a tensor with one element, not {type(loss).__name__}")
    loss.backward()
    gradients = {f"{key}.grad": each.grad for key, each in model.named_parameters() if each.grad is not None}
    return {key: each.detach().double().cpu().numpy() for key, each in {"the loss": loss, **gradients}.items()}


def try_out(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The error in a model (``wrong``), and ``has_buffers``. ``payload``: its name."""
    name, has_buffers = json.loads(payload), False
    try:
        words = wrong(name)
        has_buffers = any(True for _ in _made(name, 0)[0].buffers())
    except NotFound as error:
        return {"wrong": str(error)}
    except Exception as error:
        return {"wrong": f"{name}: {type(error).__name__}: {' '.join(str(error).split())}"}
    return {"wrong": words and f"{name}: {words}", "has_buffers": has_buffers}
