"""A description of an implementation without running it."""

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claim import by_name, on_one_line
from lockstep.properties.data import shape as data
from lockstep.properties.experts import shape as experts
from lockstep.properties.loops import shape as loops
from lockstep.properties.ranks import names
from lockstep.properties.ranks.adapter import (
    cap_argument,
    construct,
    group_argument,
    needs_nothing,
    offered,
    offered_by,
    optional_arguments,
    takes_one,
)
from lockstep.properties.ranks.lookup import NotFound, find, takes
from lockstep.properties.ranks.optimizers import is_optimizer, seen_of

_LIKE_A_FINISH = r"(?!_).*(finish|flush|synchroni|sync_grad|grads?_sync|reduce_grad|all_?reduce)"
_LIKE_A_ZERO_GRAD = re.compile(r"(zero|reset|clear|drop|discard)(_.*(grad|buffer|bucket|accumul|window).*)?$")

_LIKE_SHARDS = re.compile(r"FSDP|Shard|Zero|ZeRO")


def describe(name: str) -> Mapping[str, Any]:
    """A description of an implementation, made without running it. Raises NotFound."""
    target: Any = find(name)
    after = names.after_backward(target)
    implementation = target if after is None else names.CalledAfterBackward
    finishes = names.all_called(implementation, names.FINISH_NAMES)
    calls = {
        "finish": finishes[0] if after is None and finishes else after,
        "start": names.called(implementation, names.START_NAMES),
        "before": names.called(implementation, names.BEFORE_NAMES),
    }
    likely = [str(each) for each in finishes[1:]] if finishes else [f"{each}()" for each in _like_a_finish(target)]
    return {
        "claims": _plain(name, "a claim", getattr(target, "claims", None)),
        "has_no_sync": _has(implementation, "no_sync"),
        "has_join": _has(implementation, "join"),
        "makes_optimizer": _has(implementation, "make_optimizer"),
        "offers": offered_by(implementation),
        **{what: None if call is None else tuple(call) for what, call in calls.items()},
        "after": after is not None,
        "perhaps": tuple(likely),
        "cap": cap_argument(name),
        "takes": optional_arguments(name),
        "takes_replicas": takes(name, "replicas"),
        "takes_keywords": _takes_keywords(implementation),
        "takes_one": inspect.isclass(implementation) and takes_one(implementation),
        "like_its_model": _like_its_model(implementation),
        "zero_grad": inspect.isclass(implementation) and _zeroes_gradients(implementation),
        "zeroes_otherwise": _zeroes_otherwise(implementation),
        "group": group_argument(name),
        "made": not inspect.isclass(implementation),
        "plain": target.argument if is_optimizer(target) else "",
        "optimizer": seen_of(target) if is_optimizer(target) else {},
        "sampler": data.seen_of(target),
        "loop": loops.seen_of(target),
        "experts": experts.seen_of(target),
        "known_fault": getattr(target, "known_fault", None),
        "may_shard": _may_shard(target),
    }


def _may_shard(target: Any) -> bool:
    """True if a class that makes no optimizer may shard parameters, judged by its name or by a method."""
    if not inspect.isclass(target) or hasattr(target, "make_optimizer"):
        return False
    return bool(_LIKE_SHARDS.search(target.__name__) or offered(target, "full_parameters"))


class _Other(nn.Module):
    """A module of a kind that torch does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 4))


def shards(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Two facts about a class. ``payload``: its name.

    ``shards``: with several ranks, it leaves each rank only a part of a model of plain layers. ``plain_layers``: it
    shards these layers, but no other modules. Both are False if it cannot be constructed, which is reported elsewhere.
    """
    name = json.loads(payload)
    model = nn.Sequential(nn.Embedding(6, 4), nn.LayerNorm(4), nn.Linear(4, 6), _Other())
    *layers, other = model
    whole = [_elements(*layers), _elements(other)]
    try:
        construct(name, model, Scenario(world_size, (Parameter((1,)),), (Backward(((0,),) * world_size), Finish())))
    except Exception:
        return {"shards": False, "plain_layers": False}
    *layers, other = model
    cut = _elements(*layers) < whole[0]
    return {"shards": cut, "plain_layers": cut and _elements(other) == whole[1]}


def _elements(*modules: nn.Module) -> int:
    """The number of elements of the modules' parameters on this rank."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _like_a_finish(implementation: Any) -> tuple[str, ...]:
    """Public methods without required arguments whose names suggest that they end a synchronization."""
    if not inspect.isclass(implementation):
        return ()
    methods = inspect.getmembers(implementation, inspect.isfunction)
    return tuple(name for name, method in methods if re.match(_LIKE_A_FINISH, name) and needs_nothing(method))


def _like_its_model(implementation: Any) -> bool:
    """True if a class of modules overrides both `state_dict` and `load_state_dict`, or neither.

    If it overrides one, it may save a state that only the model can load.
    """
    if not (inspect.isclass(implementation) and issubclass(implementation, nn.Module)):
        return False
    own = [getattr(implementation, name) is not getattr(nn.Module, name) for name in ("state_dict", "load_state_dict")]
    return own[0] == own[1]


def _zeroes_gradients(kind: type) -> bool:
    """True if a class has its own `zero_grad`, which takes ``set_to_none``."""
    method = getattr(kind, "zero_grad", nn.Module.zero_grad)
    try:
        inspect.signature(method).bind(None, set_to_none=True)
    except TypeError:
        return False
    return method is not nn.Module.zero_grad


def _zeroes_otherwise(implementation: Any) -> bool:
    """True if a class has no such `zero_grad`, but a public method with a name that suggests the same purpose."""
    if not inspect.isclass(implementation) or _zeroes_gradients(implementation):
        return False
    methods = inspect.getmembers(implementation, inspect.isfunction)
    return any(_LIKE_A_ZERO_GRAD.match(name) and method is not nn.Module.zero_grad for name, method in methods)


def _takes_keywords(implementation: Any) -> bool:
    """True if objects of a class take any keyword arguments, because those of the wrapped module may be any."""
    kinds = inspect.getmro(implementation) if inspect.isclass(implementation) else ()
    called = [vars(kind)[name] for kind in kinds for name in ("forward", "__call__") if name in vars(kind)]
    try:
        arguments = inspect.signature(called[0]).parameters.values()
    except (IndexError, TypeError, ValueError):
        return False
    return any(each.kind is each.VAR_KEYWORD for each in arguments)


def _has(implementation: Any, method: str) -> bool | None:
    """True if the constructed object has a method. None if a function constructs it, since it is then not known."""
    return hasattr(implementation, method) or (False if inspect.isclass(implementation) else None)


def _plain(name: str, what: str, value: Any) -> Any:
    """A value that another process can load without importing the user's code. Raises NotFound."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # also for members of an enumeration of strings
    if isinstance(value, Mapping):
        return {_plain(name, what, key): _plain(name, f"{key}", each) for key, each in value.items()}
    for kind in (tuple, list, set, frozenset):
        if isinstance(value, kind):
            return kind(_plain(name, what, each) for each in value)
    if inspect.isclass(value):
        return by_name(value)
    raise NotFound(f"{name}: claims: {what} is a plain value of Python's, not {on_one_line(value)}")
