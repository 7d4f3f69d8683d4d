"""The names that published code gives to what a training loop calls, in the order in which they are looked for.

A method counts if nothing needs to be given to it but the model, its parameters or an optimizer, told by the names of
its arguments. So does a function of such a name, which is called with them after backward.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

# After backward, in a micro-batch that synchronizes; then gradients are final. Published classes have both of the first
# two, and the second reduces again.
FINISH_NAMES = (
    "finish_gradient_synchronization",
    "sync_gradients",
    "synchronize_gradients",
    "sync_grads",
    "reduce_gradients",
    "reduce_grads",
    "all_reduce_gradients",
    "allreduce_gradients",
    "all_reduce_grads",
    "allreduce_grads",
    "average_gradients",
    "average_grads",
    "on_after_backward",
    "after_backward",
    "finish",
    "synchronize",
    "sync",
)
# Before the forward of such a micro-batch, and between its forward and its backward.
START_NAMES = ("on_train_batch_start",)
BEFORE_NAMES = ("on_before_backward", "before_backward")
# Names of arguments, by what they are given.
ARGUMENTS = {
    "model": ("model", "module", "net", "network", "ddp_model"),
    "parameters": ("parameters", "params"),
    "optimizer": ("optimizer", "optim", "opt"),
}
# The same in a script.
IN_A_SCRIPT = {
    "model": "model",
    "parameters": "list(model.parameters())",
    "optimizer": "torch.optim.SGD(model.parameters())",
}


class Call(NamedTuple):
    """A method or function that is called, and what with: some of `ARGUMENTS`."""

    name: str
    takes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.takes)})"

    @property
    def given_in_a_script(self) -> str:
        """The arguments as code."""
        return ", ".join(IN_A_SCRIPT[each] for each in self.takes)

    def of(self, owner: Any, module: Any) -> Any:
        """Calls the method of an object."""
        return getattr(owner, self.name)(*given(self.takes, module))


def given(takes: tuple[str, ...], module: Any) -> list[Any]:
    """The arguments, of a model. The optimizer has no state and only shows the parameters."""
    import torch

    make: dict[str, Callable[[], Any]] = {
        "model": lambda: module,
        "parameters": lambda: list(module.parameters()),
        "optimizer": lambda: torch.optim.SGD(module.parameters()),
    }
    return [make[each]() for each in takes]


def called(of: Any, names: tuple[str, ...]) -> Call | None:
    """The first of the names under which a class, or an object, has something to call; None where it has none."""
    return next(iter(all_called(of, names)), None)


def all_called(of: Any, names: tuple[str, ...]) -> list[Call]:
    """Each of these names under which there is something to call."""
    found = ((name, _takes_of_method(of, name)) for name in names)
    return [Call(name, takes) for name, takes in found if takes is not None]


def after_backward(target: Any) -> Call | None:
    """The call of a function that is no wrapper, but takes a model, or its parameters, after backward."""
    if not inspect.isfunction(target) or target.__name__ not in FINISH_NAMES:
        return None
    takes = _takes(target)
    return Call(target.__name__, takes) if takes else None


def _takes_of_method(of: Any, name: str) -> tuple[str, ...] | None:
    try:
        method = getattr(of, name, None)  # which may be a property that raises
    except Exception:
        return None
    if not callable(method):
        return None
    bare = inspect.isclass(of) and not isinstance(inspect.getattr_static(of, name), staticmethod | classmethod)
    return _takes(method, skipped=int(bare))


def _takes(function: Callable[..., Any], skipped: int = 0) -> tuple[str, ...] | None:
    """The arguments that it needs; None if it needs others, or if calling it does nothing, as of a context manager."""
    bare = inspect.unwrap(function)
    if inspect.isgeneratorfunction(bare) or inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare):
        return None
    try:
        arguments = list(inspect.signature(function).parameters.values())[skipped:]
    except TypeError:
        return None
    except ValueError:  # it does not say
        return ()
    needed = [each for each in arguments if each.default is each.empty and each.kind not in _VARIABLE]
    kinds = [next((kind for kind, names in ARGUMENTS.items() if each.name in names), None) for each in needed]
    if any(each.kind is each.KEYWORD_ONLY for each in needed) or None in kinds:
        return None
    return tuple(kind for kind in kinds if kind is not None)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class CalledAfterBackward:
    """A function that is called with a model after backward, in the place of a wrapper: the caller's own part, that all
    ranks begin alike, is done for it.
    """

    def __init__(self, module: Any, function: Callable[..., Any], takes: tuple[str, ...]) -> None:
        import torch.distributed as dist

        self.module, self._function, self._takes = module, function, takes
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The model's own forward."""
        return self.module(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Calls the function."""
        self._function(*given(self._takes, self.module))
