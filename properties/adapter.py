"""Meets an implementation where it stands: finds it by name, and its methods by the names people give them.

A gradient synchronizer needs no method at all: it is called like the module that it wraps, and the caller's optimizer
steps that module's parameters. What holds parameters, gradients or optimizer state in pieces offers methods of
`Sharded` too, as many as it has a use for; what it does not offer, the caller does with the module's own parameters.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from oracle.program import Scenario
from properties.claims import shown
from worlds.settings import importing

if TYPE_CHECKING:  # it is imported where the ranks are
    import torch

# In the order in which they are looked for. Published classes have both, and the second reduces again.
FINISH_NAMES = ("finish_gradient_synchronization", "sync_gradients")
# Constructor argument -> what one byte is in its unit.
CAP_NAMES = {"bucket_cap_mb": 2**-20, "bucket_size_mb": 2**-20, "bucket_cap_bytes": 1, "bucket_bytes": 1}
USUAL_CAP = 25 * 2**20  # bytes, as torch's DDP has it
OPTIONAL_NAMES = ("broadcast_buffers",)
GROUP_NAMES = ("process_group", "group")  # None, if they have that, is the whole world


class ShardedOptimizer(Protocol):
    """What `Sharded.make_optimizer` returns. ``param_groups``: in the order of the groups; options may be changed."""

    param_groups: list[dict[str, Any]]

    def step(self) -> None:
        """Updates every parameter that has a gradient. Collective."""


class Sharded(Protocol):
    """What a sharded implementation offers beside forward, `no_sync` and its way to finish.

    Each method is optional, but that `make_optimizer` goes with `full_optimizer_state` and `load_full`.

    Parameters go by the dotted names that they have in the module when it is wrapped, a tied one by its first. Every
    rank calls every method, so all of them may communicate. "Full" means whole, averaged, in the parameter's own shape
    and dtype: what training without shards would hold.
    """

    def make_optimizer(
        self, kind: "type[torch.optim.Optimizer]", groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> ShardedOptimizer:
        """An optimizer of a class of `torch.optim`, made right after wrapping. A group is {"names": [...], **options}:
        one group too has its options there, the defaults have the first step size alone.

        ``masters=True`` among the defaults asks for float32 masters of 16-bit parameters: where they are claimed, or no
        stage is.
        """

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> "torch.Tensor":
        """Clips by, and returns, the norm of the whole averaged gradient; the same on every rank."""

    def unscale_(self, scale: float) -> bool:
        """Divides gradients by the loss scale; whether all are finite then, agreed on by all ranks."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients become None, or zero where there are some. Not called where it is `nn.Module`'s own."""

    def full_parameters(self) -> "Mapping[str, torch.Tensor]":
        """Every parameter."""

    def full_gradients(self) -> "Mapping[str, torch.Tensor | None]":
        """Every gradient, None where there is none. Called when gradients are averaged."""

    def full_optimizer_state(self) -> "Mapping[str, Mapping[str, torch.Tensor]]":
        """The optimizer's state by parameter, under torch's names; none where it was never stepped; and "master".

        It and `load_full` go with `make_optimizer`.
        """

    def load_full(
        self,
        parameters: "Mapping[str, torch.Tensor]",
        optimizer_state: "Mapping[str, Mapping[str, torch.Tensor]] | None",
    ) -> None:
        """Takes up what `full_parameters` and `full_optimizer_state` gave, in a world of any size.

        None: parameters alone; the optimizer begins afresh, masters from the parameters loaded.
        """


_OFFERED = tuple(name for name in vars(Sharded) if not name.startswith("_"))
_LIKE_A_FINISH = r"(?!_).*(finish|flush|synchroni|sync_grad|grads?_sync|reduce_grad|all_?reduce)"
_LIKE_A_ZERO_GRAD = re.compile(r"(zero|reset|clear|drop|discard)(_.*(grad|buffer|bucket|accumul|window).*)?$")
# Names that are usual, whatever is meant by them, and what they are called with here.
_CALLED_WITH: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "zero_grad": ((), {"set_to_none": True}),
    "clip_grad_norm_": ((), {"max_norm": 1.0, "norm_type": 2.0}),
    "unscale_": ((), {"scale": 1.0}),
}


_WITH_THE_OPTIMIZER = ("full_optimizer_state", "load_full")


class NotFound(ValueError):
    """What ``--impl`` names is not there. One line says what is missing and what would be right."""


@functools.lru_cache
def find(name: str) -> Callable[..., Any]:
    """The class or factory that "package.module:attribute" or "path/to/file.py:attribute" names."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise NotFound(f"--impl {name}: write package.module:attribute or path/to/file.py:attribute")
    with importing():
        module = _load_file(place) if place.endswith(".py") else _import(place, name)
    if not hasattr(module, attribute):
        public = sorted(
            key for key, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
        )
        there = f"; it defines {', '.join(public)}" if public else ""
        raise NotFound(f"--impl {name}: {place} has no attribute {attribute!r}{there}")
    found = getattr(module, attribute)
    if not callable(found):
        wanted = "name a class or a function that takes the module"
        raise NotFound(f"--impl {name}: {attribute} is {found!r}, which cannot be called; {wanted}")
    implementation: Callable[..., Any] = found
    return implementation


def _import(place: str, name: str) -> Any:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (place == missing.name or place.startswith(missing.name + ".")):
            raise NotFound(f"--impl {name}: there is no module {missing.name!r} on sys.path") from None
        raise NotFound(f"--impl {name}: importing {place} failed: {missing}") from missing
    except (Exception, SystemExit) as error:
        raise NotFound(f"--impl {name}: importing {place} failed: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """What an import raised, on one line. Python's own words have the name of a file that cannot be read, no folder."""
    words = str(error)
    if isinstance(error, SyntaxError) and error.filename is not None:
        words = f"{error.msg} ({error.filename}, line {error.lineno})"
    return f"{type(error).__name__}: {' '.join(words.split())}"


def _load_file(place: str) -> Any:
    path = Path(place)
    if not path.is_file():
        raise NotFound(f"--impl {place}: there is no such file")
    # A name of its own: files in two folders may be called alike, or like a module of somebody else's.
    name = f"{path.stem} in {path.resolve().parent}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise NotFound(f"--impl {place}: running the file failed: {_told(error)}") from error
    return sys.modules[name]


@functools.lru_cache
def takes(name: str, argument: str) -> bool:
    """Whether the constructor of the named implementation has an argument of that name."""
    try:
        return argument in inspect.signature(find(name)).parameters
    except (TypeError, ValueError):
        return False


def cap_argument(name: str) -> str | None:
    """The constructor argument that takes the bucket cap, if the named implementation has one."""
    return next((argument for argument in CAP_NAMES if takes(name, argument)), None)


def group_argument(name: str) -> str | None:
    """The constructor argument that takes a group of ranks and may be left out; what must be given, or is something
    else where it is left out, may be of another kind.
    """
    found = next((argument for argument in GROUP_NAMES if takes(name, argument)), None)
    return found if found and inspect.signature(find(name)).parameters[found].default is None else None


def construct(name: str, module: Any, scenario: Scenario, group: Any = None) -> Any:
    """Wraps a module in what is named, with those options of the scenario that its constructor takes. ``group``: the
    ranks that train, if they are not the whole world.
    """
    given = options(cap_argument(name), optional_arguments(name), scenario)
    if group is not None:
        given[group_argument(name) or GROUP_NAMES[0]] = group
    return find(name)(module, **given)


def wrong_call(name: str, module: Any, scenario: Scenario, accumulates: bool) -> str:
    """What is wrong with how the named implementation is to be called, in words; empty where nothing is.

    Only what no use of it could change. Whatever else construction may raise is judged by the laws.
    """
    given = options(cap_argument(name), optional_arguments(name), scenario)
    called = (
        f"{name.rpartition(':')[2]}({', '.join(['module', *(f'{key}={value:g}' for key, value in given.items())])})"
    )
    try:
        wrapped = construct(name, module, scenario)
    except TypeError as error:
        place = error.__traceback__.tb_next if error.__traceback__ else None
        if place is None or place.tb_next is not None or _binds(find(name), module, given):
            return ""  # raised further in, by what was called
        return f"it is called as {called}, and {error}; name a function that takes the module and fills in the rest"
    if not callable(wrapped):
        return f"{called} gives {shown(wrapped)}, which cannot be called; what is wanted is called like the module"
    no_sync = getattr(wrapped, "no_sync", None)
    if accumulates and not callable(no_sync):
        return f"claims: accumulation needs a method no_sync, and that of {called} is {shown(no_sync)}"
    return ""


def _binds(implementation: Callable[..., Any], module: Any, given: Mapping[str, Any]) -> bool:
    """Whether what it says of itself takes these arguments, or it does not say."""
    try:
        # A wrapper may well take what the function inside does not.
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
    """Those of ``OPTIONAL_NAMES`` that the constructor of the named implementation has, and the cap's if it must be
    given.
    """
    found = tuple(argument for argument in OPTIONAL_NAMES if takes(name, argument))
    cap = cap_argument(name)
    needed = cap is not None and inspect.signature(find(name)).parameters[cap].default is inspect.Parameter.empty
    return (*found, cap) if cap is not None and needed else found


def options(cap: str | None, others: tuple[str, ...], scenario: Scenario) -> dict[str, Any]:
    """Constructor arguments: for the ``cap`` and ``others`` there are. What a scenario leaves open is left out, but for
    a cap that is among the others, since it must be given.
    """
    given: dict[str, Any] = {}
    if cap is not None and (cap in others or scenario.bucket_cap is not None):
        given[cap] = (USUAL_CAP if scenario.bucket_cap is None else scenario.bucket_cap) * CAP_NAMES[cap]
    if scenario.buffers and "broadcast_buffers" in others:
        given["broadcast_buffers"] = scenario.broadcast_buffers
    if scenario.replicas > 1:
        given["replicas"] = scenario.replicas
    return given


def finish(wrapped: Any) -> None:
    """Says that backward is over, if the implementation wants to hear it."""
    name = finish_name(wrapped)
    if name is not None:
        getattr(wrapped, name)()


def finish_name(wrapped: Any) -> str | None:
    """The method that ends a synchronization, if there is one: what needs an argument is something else."""
    return next((name for name in FINISH_NAMES if _ends(wrapped, name)), None)


def _ends(wrapped: Any, name: str) -> bool:
    method = getattr(wrapped, name, None)
    if not callable(method):
        return False
    return _needs_nothing(method) if inspect.isclass(wrapped) else _accepts(wrapped, name, ((), {}))


def synchronizing(wrapped: Any, synchronize: bool) -> contextlib.AbstractContextManager[Any]:
    """The context in which a micro-batch runs."""
    context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if synchronize else wrapped.no_sync()
    return context


def joining(wrapped: Any, divide_by: str) -> contextlib.AbstractContextManager[Any]:
    """The context in which ranks may run out of micro-batches; who leaves it early takes part until all have left."""
    context: contextlib.AbstractContextManager[Any] = wrapped.join(
        divide_by_initial_world_size=divide_by == "world size"
    )
    return context


def offers(wrapped: Any) -> frozenset[str]:
    """Which methods of `Sharded` an implementation has.

    What shards nothing may have one that is called alike and takes less; then the caller does without.
    """
    from torch import nn

    found = {name for name in _OFFERED if callable(getattr(wrapped, name, None))}
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
    """The methods of `Sharded` that a class has; none of what a function makes, as that is not known before."""
    if not inspect.isclass(implementation):
        return ()
    found = [name for name in _OFFERED if callable(getattr(implementation, name, None))]
    if "make_optimizer" in found:
        return tuple(found)
    calls = {name: ((None, *given), named) for name, (given, named) in _CALLED_WITH.items()}  # None: self
    return tuple(name for name in found if name not in calls or _accepts(implementation, name, calls[name]))


def _accepts(wrapped: Any, name: str, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    try:
        inspect.signature(getattr(wrapped, name)).bind(*arguments[0], **arguments[1])
    except TypeError:
        return False
    except ValueError:  # it does not say
        return True
    return True


def _like_a_finish(implementation: Any) -> tuple[str, ...]:
    """Public methods, callable without arguments, that by their names may be what ends a synchronization."""
    if not inspect.isclass(implementation):
        return ()
    methods = inspect.getmembers(implementation, inspect.isfunction)
    return tuple(name for name, method in methods if re.match(_LIKE_A_FINISH, name) and _needs_nothing(method))


def _needs_nothing(method: Any) -> bool:
    try:
        inspect.signature(method).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def _zeroes_gradients(kind: type) -> bool:
    """Whether a class has a `zero_grad` that is not every module's, and takes what it is given."""
    from torch import nn

    method = getattr(kind, "zero_grad", nn.Module.zero_grad)
    try:
        inspect.signature(method).bind(None, set_to_none=True)
    except TypeError:
        return False
    return method is not nn.Module.zero_grad


def _zeroes_otherwise(implementation: Any) -> bool:
    """Whether a class has no such `zero_grad`, but a public method that by its name may be there for the same."""
    from torch import nn

    if not inspect.isclass(implementation) or _zeroes_gradients(implementation):
        return False
    methods = inspect.getmembers(implementation, inspect.isfunction)
    return any(_LIKE_A_ZERO_GRAD.match(name) and method is not nn.Module.zero_grad for name, method in methods)


def _has(implementation: Any, method: str) -> bool | None:
    """Whether what is constructed has a method; None where a function makes it, so that only it knows."""
    return hasattr(implementation, method) or (False if inspect.isclass(implementation) else None)


def _plain(name: str, what: str, value: Any) -> Any:
    """A value that another process can take over without importing anything of the user's. Raises NotFound."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of an enumeration too
    if isinstance(value, Mapping):
        return {_plain(name, what, key): _plain(name, f"{key}", each) for key, each in value.items()}
    for kind in (tuple, list, set, frozenset):
        if isinstance(value, kind):
            return kind(_plain(name, what, each) for each in value)
    raise NotFound(f"--impl {name}: claims: {what} is a plain value of Python's, not {shown(value)}")


def describe(name: str) -> Mapping[str, Any]:
    """What can be told of an implementation without running it. Raises NotFound."""
    implementation = find(name)
    return {
        "claims": _plain(name, "a claim", getattr(implementation, "claims", None)),
        "has_no_sync": _has(implementation, "no_sync"),
        "has_join": _has(implementation, "join"),
        "makes_optimizer": _has(implementation, "make_optimizer"),
        "offers": offered_by(implementation),
        "finish": finish_name(implementation),
        "perhaps": () if finish_name(implementation) else _like_a_finish(implementation),
        "cap": cap_argument(name),
        "takes": optional_arguments(name),
        "zero_grad": inspect.isclass(implementation) and _zeroes_gradients(implementation),
        "zeroes_otherwise": _zeroes_otherwise(implementation),
        "group": group_argument(name),
        "made": not inspect.isclass(implementation),
        "known_fault": getattr(implementation, "known_fault", None),
    }
