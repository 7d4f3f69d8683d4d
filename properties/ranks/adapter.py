"""Construct an implementation, and call its methods by their usual names.

A gradient synchronizer needs no method. It is called like the module that it wraps, and the caller's optimizer steps
that module's parameters. An implementation that shards parameters, gradients or optimizer state also offers the methods
of `properties.sharded.Sharded` that it needs. If it lacks one, the caller uses the module's own parameters.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.oracle.program import Scenario
from lockstep.properties.claim import on_one_line
from lockstep.properties.ranks import names
from lockstep.properties.ranks.lookup import find, takes
from lockstep.properties.sharded import Sharded

# Constructor argument -> one byte in its unit.
CAP_NAMES = {"bucket_cap_mb": 2**-20, "bucket_size_mb": 2**-20, "bucket_cap_bytes": 1, "bucket_bytes": 1}
INPUTS = 5  # positional arguments of the probe's forward: the fields of `properties.ranks.probes.Inputs`
USUAL_CAP = 25 * 2**20  # bytes, as torch's DDP has it
OPTIONAL_NAMES = ("broadcast_buffers",)
GROUP_NAMES = ("process_group", "group")  # the default None means the whole world
# Other names for methods of `Sharded` that take no arguments.
ALSO_CALLED = {"full_parameters": ("gather_full_params", "gather_full_parameters", "full_params")}
HANDLES = ("result", "wait")  # methods of a handle; each waits and returns the saved values
_OFFERED = tuple(name for name in vars(Sharded) if not name.startswith("_"))
# Common names that may have another meaning, and the arguments with which they are called here.
_CALLED_WITH: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "zero_grad": ((), {"set_to_none": True}),
    "clip_grad_norm_": ((), {"max_norm": 1.0}),
    "unscale_": ((), {"scale": 1.0}),
}
_WITH_THE_OPTIMIZER = ("full_optimizer_state", "load_full")


def cap_argument(name: str) -> str | None:
    """The constructor argument that takes the bucket cap, if the named implementation has one."""
    return next((argument for argument in CAP_NAMES if takes(name, argument)), None)


def group_argument(name: str) -> str | None:
    """The constructor argument that takes a group of ranks.

    Its default must be None; else it may mean something else.
    """
    found = next((argument for argument in GROUP_NAMES if takes(name, argument)), None)
    return found if found and inspect.signature(find(name)).parameters[found].default is None else None


def construct(name: str, module: Any, scenario: Scenario, group: Any = None) -> Any:
    """Wrap a module in the named implementation, with the options of the scenario that its constructor takes.

    ``group``: the ranks that train, if they are not the whole world.
    """
    given = options(cap_argument(name), optional_arguments(name), scenario)
    if group is not None:
        given[group_argument(name) or GROUP_NAMES[0]] = group
    implementation = find(name)
    _keep_apart(implementation)
    if (after := names.after_backward(implementation)) is not None:
        return names.CalledAfterBackward(module, implementation, after.takes)
    return implementation(module, **given)


def _keep_apart(implementation: Any) -> None:
    """Let the simulated world keep an implementation's global variables apart by rank, if it was asked to.

    This covers the modules of the implementation's package, or the files beside its file. Of Lockstep itself it covers
    one module.
    """
    from lockstep.worlds.sim.possessions import keep_apart

    module = sys.modules.get(getattr(implementation, "__module__", None) or "")
    if module is not None:
        keep_apart(functools.partial(_beside, module))


def _beside(module: Any) -> list[Any]:
    """The module, and the modules that belong to it."""
    package, file = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    folder = str(Path(file).parent) if file and " in " in module.__name__ else None
    others = [] if package == "lockstep" else [*sys.modules.items()]
    beside = [
        each
        for name, each in others
        if name.partition(".")[0] == package
        or (folder is not None and str(Path(getattr(each, "__file__", None) or "/").parent) == folder)
    ]
    return [*dict.fromkeys([module, *beside])]


def constructed_as(name: str, scenario: Scenario) -> str:
    """The call by which `construct` makes the implementation, without a group; empty if it takes only the module."""
    given = options(cap_argument(name), optional_arguments(name), scenario)
    return _call(name, given) if given else ""


def _call(name: str, given: Mapping[str, Any]) -> str:
    told = (f"{key}={value if isinstance(value, bool) else f'{value:g}'}" for key, value in given.items())
    return f"{name.rpartition(':')[2]}({', '.join(['module', *told])})"


def wrong_call(name: str, module: Any, scenario: Scenario, accumulates: bool) -> str:
    """The error in calling the named implementation, in words; empty if there is none.

    Only errors that no use of it could avoid count. The laws judge all other errors of construction.
    """
    # Imported here because they import torch, which drawing and writing scripts do not need.
    from lockstep.properties.ranks.optimizers import is_optimizer
    from lockstep.properties.ranks.optimizers import wrong_call as wrong_optimizer

    if is_optimizer(implementation := find(name)):
        return wrong_optimizer(implementation, module)  # type: ignore[arg-type]  # it is such a class
    given = options(cap_argument(name), optional_arguments(name), scenario)
    called = _call(name, given)
    try:
        wrapped = construct(name, module, scenario)
    except TypeError as error:
        place = error.__traceback__.tb_next if error.__traceback__ else None
        if place is None or place.tb_next is not None or _binds(find(name), module, given):
            return ""  # raised inside the implementation
        return f"it is called as {called}, and {error}; name a function that takes the module and fills in the rest"
    if not callable(wrapped):
        return (
            f"{called} gives {on_one_line(wrapped)}, which cannot be called; what is wanted is called like the module"
        )
    no_sync = getattr(wrapped, "no_sync", None)
    if accumulates and not callable(no_sync):
        return f"claims: accumulation needs a method no_sync, and that of {called} is {on_one_line(no_sync)}"
    return ""


def takes_one(wrapped: Any) -> bool:
    """True if the object, or an object of the class, can be called with one argument, but not with all of the
    probe's.
    """
    kind = wrapped if inspect.isclass(wrapped) else type(wrapped)
    methods = [vars(each)[name] for each in kind.__mro__ for name in ("forward", "__call__") if name in vars(each)]
    try:
        signature = inspect.signature(methods[0])
    except (IndexError, TypeError, ValueError):
        return False
    return _takes(signature, 1) and not _takes(signature, INPUTS)


def _takes(signature: inspect.Signature, count: int) -> bool:
    """True if a method takes so many positional arguments beside the first."""
    try:
        signature.bind(*range(1 + count))
    except TypeError:
        return False
    return True


def _binds(implementation: Callable[..., Any], module: Any, given: Mapping[str, Any]) -> bool:
    """True if the signature takes these arguments, or if there is no signature."""
    try:
        # A decorated function may take other arguments than the inner one.
        signature = inspect.signature(implementation, follow_wrapped=False)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(module, **given)
    except TypeError:
        return False
    return True


@functools.lru_cache
def optional_arguments(name: str) -> tuple[str, ...]:
    """The arguments in ``OPTIONAL_NAMES`` that the constructor has, and that for the bucket cap if it is required."""
    found = tuple(argument for argument in OPTIONAL_NAMES if takes(name, argument))
    cap = cap_argument(name)
    needed = cap is not None and inspect.signature(find(name)).parameters[cap].default is inspect.Parameter.empty
    return (*found, cap) if cap is not None and needed else found


def options(cap: str | None, others: tuple[str, ...], scenario: Scenario) -> dict[str, Any]:
    """The constructor arguments for a scenario. ``cap`` and ``others``: the arguments that the constructor has.

    Options that the scenario leaves open are left out, except for a required cap.
    """
    given: dict[str, Any] = {}
    if cap is not None and (cap in others or scenario.bucket_cap is not None):
        given[cap] = (USUAL_CAP if scenario.bucket_cap is None else scenario.bucket_cap) * CAP_NAMES[cap]
    if scenario.buffers and "broadcast_buffers" in others:
        given["broadcast_buffers"] = scenario.broadcast_buffers
    if scenario.replicas > 1:
        given["replicas"] = scenario.replicas
    return given


def finish(wrapped: Any, module: Any = None) -> None:
    """Tell the implementation that backward has ended, if it has a method for that.

    ``module``: the model that it wraps.
    """
    _call_first(wrapped, names.FINISH_NAMES, module)


def start(wrapped: Any, module: Any) -> None:
    """Tell the implementation, before a forward, that a synchronizing micro-batch begins."""
    _call_first(wrapped, names.START_NAMES, module)


def before_backward(wrapped: Any, module: Any) -> None:
    """Tell the implementation, after that forward, that its backward begins."""
    _call_first(wrapped, names.BEFORE_NAMES, module)


def _call_first(wrapped: Any, known: tuple[str, ...], module: Any) -> None:
    call = names.called(wrapped, known)
    if call is not None:
        call.of(wrapped, getattr(wrapped, "module", None) if module is None else module)


def synchronizing(wrapped: Any, synchronize: bool) -> contextlib.AbstractContextManager[Any]:
    """The context in which a micro-batch runs."""
    context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if synchronize else wrapped.no_sync()
    return context


def joining(wrapped: Any, divide_by: str) -> contextlib.AbstractContextManager[Any]:
    """The context in which ranks may run out of micro-batches.

    A rank that leaves it early takes part until all have left.
    """
    context: contextlib.AbstractContextManager[Any] = wrapped.join(
        divide_by_initial_world_size=divide_by == "world size"
    )
    return context


def clip(wrapped: Any, max_norm: float, norm_type: float) -> Any:
    """Let the implementation clip the gradients; return the norm if it returns one.

    NotImplementedError means that it refuses. It does so for a norm type other than 2 if it takes no norm type, and if
    it neither takes a norm type nor returns a norm.
    """
    takes_type = _accepts(wrapped, "clip_grad_norm_", ((max_norm, norm_type), {}))
    if not takes_type and norm_type != 2.0:
        raise NotImplementedError(f"clip_grad_norm_ takes no norm_type, which is {norm_type} here")
    norm = wrapped.clip_grad_norm_(max_norm, *[norm_type] * takes_type)
    if norm is None and not takes_type:
        raise NotImplementedError("clip_grad_norm_ takes no norm_type and returns no norm: it may mean something else")
    return norm


def offered(wrapped: Any, name: str) -> str:
    """The name under which an object, or a class, has a method of `Sharded`; empty if it has none."""
    for each in (name, *ALSO_CALLED.get(name, ())):
        try:
            if callable(getattr(wrapped, each, None)):
                return each
        except Exception:  # raised by a property, which is no method
            continue
    return ""


def is_handle(told: Any) -> bool:
    """True if a method of `Sharded` has returned a handle instead of values."""
    return not isinstance(told, Mapping) and any(callable(getattr(told, name, None)) for name in HANDLES)


def ended(told: Any) -> Any:
    """The values that a method of `Sharded` has returned. A handle is waited for."""
    if not is_handle(told):
        return told
    return next(getattr(told, name) for name in HANDLES if callable(getattr(told, name, None)))()


def full_parameters(wrapped: Any) -> Mapping[str, Any]:
    """Every full parameter, by its name in the model."""
    return as_named(ended(parameters_to_save(wrapped)))


def parameters_to_save(wrapped: Any) -> Any:
    """The full parameters under the implementation's names, or a handle."""
    return getattr(wrapped, offered(wrapped, "full_parameters"))()


def as_named(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters by their names in the model."""
    return {name.removeprefix("module."): value for name, value in found.items()}


def offers(wrapped: Any) -> frozenset[str]:
    """The methods of `Sharded` that an implementation has.

    An implementation that shards nothing may have a method of the same name with fewer arguments. Such a method is not
    used.
    """
    from torch import nn

    found = {name for name in _OFFERED if offered(wrapped, name)}
    if getattr(type(wrapped), "zero_grad", None) is nn.Module.zero_grad:
        found.discard("zero_grad")
    if "make_optimizer" in found and (missing := [name for name in _WITH_THE_OPTIMIZER if name not in found]):
        words = f"make_optimizer goes with {' and '.join(_WITH_THE_OPTIMIZER)}"
        raise NotImplementedError(f"{words}, by which its state is seen; there is no {' and no '.join(missing)}")
    if "make_optimizer" not in found:
        usual = found & _CALLED_WITH.keys()
        found -= {name for name in usual if not _accepts(wrapped, name, _CALLED_WITH[name])}
    return frozenset(found)


def offered_by(implementation: Any) -> tuple[str, ...]:
    """The methods of `Sharded` that a class has. Empty for a function, whose result is not known before the call."""
    if not inspect.isclass(implementation):
        return ()
    found = [name for name in _OFFERED if offered(implementation, name)]
    if "make_optimizer" in found:
        return tuple(found)
    calls = {name: ((None, *given), named) for name, (given, named) in _CALLED_WITH.items()}  # None: self
    return tuple(name for name in found if name not in calls or _accepts(implementation, name, calls[name]))


def _accepts(wrapped: Any, name: str, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    try:
        inspect.signature(getattr(wrapped, name)).bind(*arguments[0], **arguments[1])
    except TypeError:
        return False
    except ValueError:  # it has no signature
        return True
    return True


def needs_nothing(method: Any) -> bool:
    """True if a method of a class can be called without arguments."""
    try:
        inspect.signature(method).bind(None)
    except (TypeError, ValueError):
        return False
    return True
