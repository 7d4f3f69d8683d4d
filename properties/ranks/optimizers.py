"""Adapt sharded optimizers of the usual form, which take parameters and the class of the plain optimizer:

    optimizer = Sharded(model.parameters(), torch.optim.AdamW, lr=0.1)

Such a class is the caller's optimizer and wraps no model. `met` adds a wrapper that averages gradients, so that the
laws about steps apply to it.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial, reduce
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.properties.claims import SAVED_BY
from lockstep.worlds.devices import place

# Names of constructor arguments: the parameters, which come first, and the class of the optimizer to shard.
PARAMETERS = re.compile(r"(model_)?(params?|parameters)(_or_groups)?|param_groups|params_or_param_groups")
PLAIN = re.compile(r"((inner|base|local|wrapped)_)?(optim|optimizer|opt)(_?(cls|class|type|ctor|fn|factory))?")


def plain_argument(implementation: Any) -> str:
    """The constructor argument that takes the class of the plain optimizer; empty if this is no sharded optimizer."""
    if inspect.isclass(implementation) and not callable(getattr(implementation, "step", None)):
        return ""
    try:
        first, *others = inspect.signature(implementation).parameters.values()
    except (TypeError, ValueError):
        return ""
    if not PARAMETERS.fullmatch(first.name):
        return ""
    by_name = (each.name for each in others if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
    return next((name for name in by_name if PLAIN.fullmatch(name)), "")


def is_of_one_kind(implementation: Any) -> bool:
    """True if it is a sharded optimizer with its own update rule, so that it takes no class.

    An example is distributed Muon.
    """
    return inspect.isclass(implementation) and issubclass(implementation, torch.optim.Optimizer)


def met(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of a model: a subclass of `Averaged` for a sharded optimizer, and anything else unchanged."""
    argument = plain_argument(implementation)
    if not argument and not is_of_one_kind(implementation):
        return implementation
    told = {name: getattr(implementation, name) for name in ("claims", "known_fault") if hasattr(implementation, name)}
    told |= {"__module__": getattr(implementation, "__module__", __name__), "__doc__": implementation.__doc__}
    name = getattr(implementation, "__name__", type(implementation).__name__)
    return type(name, (Averaged,), {**told, "sharded": staticmethod(implementation), "argument": argument})


class Averaged(nn.Module):
    """A model whose gradients are averaged at the end of backward, so that a sharded optimizer can step it.

    ``sharded``: the constructor of the optimizer. ``argument``: its argument for the class of the plain optimizer;
    empty if it takes none.
    """

    sharded: Callable[..., Any]
    argument: str
    zeros = False  # true if a parameter that no rank used gets a gradient of zeros
    withheld = False  # true if a rank that had no gradient gets no mean

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, src=0)
            tensor.data.copy_(whole)

    def heed(self, averages_in_step: bool, zeros: bool, withheld: bool = False) -> None:
        """Follow the claims.

        If `step` averages gradients, it finds each rank's own, and means are computed only for observation.
        """
        self.zeros, self.withheld = zeros, withheld
        if averages_in_step:
            self.finish_gradient_synchronization = _nothing  # type: ignore[method-assign]
            self.full_gradients, self.unscale_, self.clip_grad_norm_ = self._means, self._unscale, _no_clip

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model."""
        return self.module(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient that some rank has by the mean.

        If means are withheld, ranks without a gradient get none.
        """
        for parameter, mean in self._averaged():
            if parameter.grad is not None:  # in place, because it may be a view of a buffer of the optimizer
                parameter.grad.copy_(mean)
            elif not self.withheld:
                parameter.grad = mean

    def _averaged(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """The trainable parameters for which some rank has a gradient, each with its mean."""
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        there = torch.tensor([float(self.zeros or each.grad is not None) for each in trained], device=place())
        dist.all_reduce(there)
        for parameter in (each for each, some in zip(trained, there.tolist(), strict=True) if some):
            mean = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
            whole = mean.contiguous()
            dist.all_reduce(whole)
            yield parameter, mean.copy_(whole / dist.get_world_size())

    def _means(self) -> Mapping[str, torch.Tensor | None]:
        """The mean of each gradient, by parameter name."""
        means = dict(self._averaged())
        named = self.module.named_parameters(remove_duplicate=False)
        return {name: means.get(parameter, parameter.grad) for name, parameter in named}

    def _unscale(self, scale: float) -> bool:
        """Divide each rank's gradients.

        A collective decides if all are finite, because no rank has the others' gradients yet.
        """
        own = [each.grad for each in self.module.parameters() if each.grad is not None]
        for gradient in own:
            gradient /= scale
        finite = torch.tensor(float(all(bool(gradient.isfinite().all()) for gradient in own)), device=place())
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        return bool(finite)


def _nothing() -> None:
    """Do nothing, because the step averages the gradients."""


def _no_clip(max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    raise NotImplementedError("gradients are averaged inside step(), so that no mean can be clipped before it")


def plain(params: Any, optimizer_cls: Any, **defaults: Any) -> Any:
    """An optimizer that shards nothing: each rank has the plain optimizer of all parameters."""
    return optimizer_cls(params, **defaults)


def is_optimizer(implementation: Any) -> bool:
    """True if `met` returned this for a sharded optimizer."""
    return inspect.isclass(implementation) and issubclass(implementation, Averaged)


def seen_of(implementation: type[Averaged]) -> dict[str, Any]:
    """A description of a sharded optimizer without constructing it, with the fields of `properties.claim.Shape`."""
    made = implementation.sharded
    made = getattr(made, "func", made)  # unwraps a functools.partial
    step = getattr(made, "step", None)
    saves = hasattr(made, "state_dict") and hasattr(made, "load_state_dict")
    return {
        "takes_closures": step is not None and _takes(step, None, _nothing),  # None: self
        "adds_groups": hasattr(made, "add_param_group"),
        "schedules": inspect.isclass(made) and issubclass(made, torch.optim.Optimizer),
        "saved_by": SAVED_BY[hasattr(made, "consolidate_state_dict")] if saves else None,
        "of_one_kind": not implementation.argument,
    }


def _takes(method: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    try:
        inspect.signature(method).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        return True
    return True


def maker(wrapped: Any, kind: Callable[..., Any]) -> Callable[..., Any]:
    """The class or function that makes the caller's optimizer: the plain class, or the sharded optimizer around it."""
    return made_of(type(wrapped), kind) if isinstance(wrapped, Averaged) else kind


def made_of(implementation: type[Averaged], kind: Callable[..., Any]) -> Callable[..., Any]:
    """The constructor of a sharded optimizer with the class of the plain one filled in, if it takes one."""
    taken = {implementation.argument: kind} if implementation.argument else {}
    return partial(implementation.sharded, **taken)


def wrong_call(implementation: type[Averaged], module: nn.Module) -> str:
    """The error in calling a sharded optimizer, in words; empty if there is none."""
    if not implementation.argument:
        return ""
    try:
        made_of(implementation, torch.optim.SGD)([{"params": [*module.parameters()], "lr": 0.5}], lr=0.5)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is None:  # the call itself raised it
            called = f"{implementation.__name__}(groups, {implementation.argument}=SGD, lr=0.5)"
            return f"it is called as {called}, and {error}; name a function that takes these and fills in the rest"
    return ""


def class_of(name: str, otherwise: str) -> Callable[..., Any]:
    """The class of the plain optimizer with the claimed ``name`` or, without one, torch's class ``otherwise``."""
    home, _, attribute = (name or f"torch.optim:{otherwise}").partition(":")
    module: Any = sys.modules.get(home) or import_module(home)
    found: Callable[..., Any] = reduce(getattr, attribute.split("."), module)
    return found


def known_to(kind: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a class of optimizers takes."""
    takes = _arguments(kind)
    return {name: value for name, value in options.items() if name in takes}


@cache
def _arguments(kind: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(kind).parameters)


def classes(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The error (``wrong``) in the optimizer classes that a sharded optimizer claims, in words; empty if there is none.

    ``payload``: the name of the sharded optimizer, and those of the classes.
    """
    from lockstep.properties.ranks.lookup import find

    name, claimed = json.loads(payload)
    find(name)  # importing it may define them
    for each in claimed:
        try:
            if not inspect.isclass(class_of(each, "")):
                return {"wrong": f"claims: optimizers: {each} is no class"}
        except (ImportError, AttributeError, ValueError) as error:
            return {"wrong": f"claims: optimizers: there is no {each}: {error}"}
    return {"wrong": ""}


def probe_step(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Report if one SGD step on gradients that differ between ranks is ``mixed``, that is, uses their mean or sum.

    ``payload``: the name of a sharded optimizer.
    """
    from lockstep.properties.ranks.lookup import find

    implementation: Any = find(json.loads(payload))
    parameters = [nn.Parameter(torch.zeros(2, device=place())) for _ in range(2 * world_size)]
    if not implementation.argument:
        return {"mixed": False}
    optimizer = made_of(implementation, torch.optim.SGD)(parameters, lr=1.0)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 4.0**rank)
    optimizer.step()
    total = sum(4.0**each for each in range(world_size))
    left = {value for parameter in parameters for value in parameter.tolist()}
    return {"mixed": bool(left & {-total, -total / world_size})}
