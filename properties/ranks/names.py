"""Names of methods that a training loop calls, collected from published code, in the order in which they are tried.

A method counts if it needs no arguments but the model, its parameters or an optimizer, recognized by the arguments'
names. A function of such a name counts too, and is called with them after backward.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

# Called after backward of a synchronizing micro-batch; then gradients are final. Some published classes have both of
# the first two methods, and the second would reduce again.
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
# Called before the forward of such a micro-batch, and between its forward and its backward.
START_NAMES = ("on_train_batch_start",)
BEFORE_NAMES = ("on_before_backward", "before_backward")
# The names of arguments that take each kind of value.
ARGUMENTS = {
    "model": ("model", "module", "net", "network", "ddp_model"),
    "parameters": ("parameters", "params"),
    "optimizer": ("optimizer", "optim", "opt"),
}
# The values as code in a script.
IN_A_SCRIPT = {
    "model": "model",
    "parameters": "list(model.parameters())",
    "optimizer": "torch.optim.SGD(model.parameters())",
}


class Call(NamedTuple):
    """A method or function to call, and its arguments, which are some of `ARGUMENTS`."""

    name: str
    takes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.takes)})"

    @property
    def given_in_a_script(self) -> str:
        """The arguments as code."""
        return ", ".join(IN_A_SCRIPT[each] for each in self.takes)

    def of(self, owner: Any, module: Any) -> Any:
        """Call the method of an object."""
        return getattr(owner, self.name)(*given(self.takes, module))


def given(takes: tuple[str, ...], module: Any) -> list[Any]:
    """The arguments made from a model. The optimizer has no state and only shows the parameters."""
    import torch

    make: dict[str, Callable[[], Any]] = {
        "model": lambda: module,
        "parameters": lambda: list(module.parameters()),
        "optimizer": lambda: torch.optim.SGD(module.parameters()),
    }
    return [make[each]() for each in takes]


def called(of: Any, names: tuple[str, ...]) -> Call | None:
    """The first of the names under which a class or object has a callable; None if there is none."""
    return next(iter(all_called(of, names)), None)


def all_called(of: Any, names: tuple[str, ...]) -> list[Call]:
    """All of these names under which there is a callable."""
    found = ((name, _takes_of_method(of, name)) for name in names)
    return [Call(name, takes) for name, takes in found if takes is not None]


def after_backward(target: Any) -> Call | None:
    """The call of a function that wraps nothing, but takes a model or its parameters after backward."""
    if not inspect.isfunction(target) or target.__name__ not in FINISH_NAMES:
        return None
    takes = _takes(target)
    return Call(target.__name__, takes) if takes else None


def _takes_of_method(of: Any, name: str) -> tuple[str, ...] | None:
    try:
        method = getattr(of, name, None)  # it may be a property that raises
    except Exception:
        return None
    if not callable(method):
        return None
    bare = inspect.isclass(of) and not isinstance(inspect.getattr_static(of, name), staticmethod | classmethod)
    return _takes(method, skipped=int(bare))


def _takes(function: Callable[..., Any], skipped: int = 0) -> tuple[str, ...] | None:
    """The arguments that it needs.

    None if it needs others, or if calling it runs nothing, as with a context manager.
    """
    bare = inspect.unwrap(function)
    if inspect.isgeneratorfunction(bare) or inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare):
        return None
    try:
        arguments = list(inspect.signature(function).parameters.values())[skipped:]
    except TypeError:
        return None
    except ValueError:  # it has no signature
        return ()
    needed = [each for each in arguments if each.default is each.empty and each.kind not in _VARIABLE]
    kinds = [next((kind for kind, names in ARGUMENTS.items() if each.name in names), None) for each in needed]
    if any(each.kind is each.KEYWORD_ONLY for each in needed) or None in kinds:
        return None
    return tuple(kind for kind in kinds if kind is not None)


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class CalledAfterBackward:
    """A model, and a function that is called with it after backward instead of a wrapper.

    The caller of such a function must make all ranks equal at the beginning. This class does that by a broadcast.
    """

    def __init__(self, module: Any, function: Callable[..., Any], takes: tuple[str, ...]) -> None:
        import torch.distributed as dist

        self.module, self._function, self._takes = module, function, takes
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the model's own forward."""
        return self.module(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Call the function."""
        self._function(*given(self._takes, self.module))
