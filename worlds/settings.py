"""State of a whole process or thread that one example would leave to the next: settings of Python and torch, and
functions of theirs that an implementation replaces.

It is read before and after each example. A few settings can be put back. If any other has changed, only a new process
begins as the first one did.
"""

import contextlib
import faulthandler
import functools
import gc
import multiprocessing
import operator
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from lockstep.worlds.contract import RankFunction, resolve
from lockstep.worlds.progress import is_supervised, off_the_clock


@dataclass(frozen=True)
class Setting:
    """One setting. ``get`` gives a value that no later change reaches; ``put`` sets it back, if that is possible."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object] | None = None

    def told(self, before: object, after: object) -> str:
        """The changes, in words."""
        return f"setting of {self.name}"


def _put_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    with warnings.catch_warnings():  # has Python forget what it knew of the filters
        pass


_TIMERS = [signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF]


def _alarms() -> list[bool]:
    """The timers that run."""
    return [signal.getitimer(timer) != (0.0, 0.0) for timer in _TIMERS]


def _stop_alarms(before: list[bool]) -> None:
    for timer, ran in zip(_TIMERS, before, strict=True):
        if not ran:
            signal.setitimer(timer, 0)


def _call_off_dump(_: object) -> None:
    if is_supervised():  # elsewhere it is others that wait for it, such as pytest
        faulthandler.cancel_dump_traceback_later()


def _streams() -> tuple[object, ...]:
    return sys.stdout, sys.stderr, *(_file(number) for number in range(3))


def _file(number: int) -> tuple[int, int] | None:
    try:
        told = os.fstat(number)
    except OSError:  # it is closed
        return None
    return told.st_dev, told.st_ino


_getsignal = signal._signal.getsignal  # type: ignore[attr-defined]  # as it is in C: Python's takes ten times as long
_SIGNALS = [getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "ALRM", "VTALRM", "PROF", "USR1", "USR2", "CHLD")]
_LIMITS = [
    getattr(resource, f"RLIMIT_{name}") for name in ("AS", "CORE", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK")
]
_GLOBAL_HOOKS = [
    hooks
    for of in (modules, optimizers)
    for name, hooks in vars(of).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
]


def _compiled() -> int:
    """The number of frames compiled since the last reset. Code that compiles nothing does not pay for the import."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return 0 if frames is None else int(frames.FRAME_COUNTER)


def _forget_compiled(_: int) -> None:
    sys.modules["torch._dynamo"].reset()


_SUBNORMAL = sys.float_info.min / 2

OF_THE_PROCESS = (
    Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting(
        "torch's deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    Setting("the filters of warnings", lambda: list(warnings.filters), _put_filters),
    Setting("how warnings are shown", lambda: warnings.showwarning),
    Setting("torch's precision of matmul", torch.get_float32_matmul_precision),
    Setting("torch's detection of anomalies", torch.is_anomaly_enabled),
    Setting("torch's hooks on all modules and optimizers", lambda: [*map(len, _GLOBAL_HOOKS)]),
    Setting("the working folder", os.getcwd),
    Setting("the standard streams", _streams),
    Setting("what signals do", lambda: [*map(_getsignal, _SIGNALS)]),
    Setting("the limits on resources", lambda: [*map(resource.getrlimit, _LIMITS)]),
    Setting("the limit on recursion", sys.getrecursionlimit),
    Setting("the collection of garbage", lambda: (gc.isenabled(), gc.get_threshold())),
    Setting("the path of imports", lambda: (list(sys.path), list(sys.meta_path))),
    Setting("how processes are started", lambda: multiprocessing.get_start_method(allow_none=True)),
    Setting("an alarm", _alarms, _stop_alarms),
    # Nobody can ask whether one is due, so it is never as before: one object equals no other.
    Setting("a dump of all stacks", object, _call_off_dump),
    Setting("NumPy's generator", np.random.mtrand.get_bit_generator, np.random.mtrand.set_bit_generator),
    Setting("what torch.compile has compiled", _compiled, _forget_compiled),
    Setting("what happens to uncaught exceptions", lambda: (threading.excepthook, sys.unraisablehook)),
)
OF_A_THREAD = (
    Setting("whether gradients are computed", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting("torch's inference mode", torch.is_inference_mode_enabled),
    Setting("torch's autocast", lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))),
    Setting("a mode of torch's functions", torch._C._len_torch_function_stack),
    Setting("a mode of torch's dispatch", torch._C._len_torch_dispatch_stack),
    Setting("torch's hooks on saved tensors", lambda: torch._C._autograd._top_saved_tensors_default_hooks(True)),
    Setting("whether subnormal numbers count as zero", lambda: _SUBNORMAL * 2 == 0, torch.set_flush_denormal),
    Setting("NumPy's handling of errors", np.geterr, lambda how: np.seterr(**how)),
    Setting("the tracing of calls", lambda: (sys.gettrace(), sys.getprofile())),
)
# Whose functions people replace, to follow or to change what training does: some of torch's, all of the others'. Not
# those of optimizers: torch replaces the step of each class itself, when the first of it is made.
_FACTORIES = [f"{kind}{like}" for kind in ("empty", "full", "ones", "rand", "randn", "zeros") for like in ("", "_like")]
_REPLACED = {
    torch: [*_FACTORIES, "arange", "cat", "stack", "tensor", "compile", "load", "no_grad", "save"],
    **dict.fromkeys(
        (
            torch.Tensor,
            torch.autograd,
            torch.distributed,
            torch.distributed.distributed_c10d,
            torch.distributed.ProcessGroup,
            torch.distributed.Work,
            torch.nn.Linear,
            torch.nn.Module,
            torch.nn.Parameter,
            torch.nn.functional,
            torch.nn.utils,
            torch.optim.Optimizer,
            torch.utils.checkpoint,
        )
    ),
}


# What torch.compile leaves in nn.Module when it first compiles: this, and two methods around the usual ones.
_TAGGED = "___needs_generation_tag_patch"


def _untagged(function: Any) -> Any:
    """The method that torch.compile has replaced by this one; else the same."""
    ours = getattr(function, "__module__", "") == "torch._dynamo.mutation_guard"
    return function.__closure__[0].cell_contents if ours else function


def _are(values: tuple[object, ...], others: tuple[object, ...]) -> bool:
    """True if these are the others. Different objects are asked if they are equal, which some refuse to say."""
    try:
        return values == others
    except Exception:
        return False


class Functions:
    """The functions of a module or class of torch; used like a `Setting`."""

    put = None

    def __init__(self, of: Any, names: Iterable[str] | None) -> None:
        self._of, self._is_whole = of, names is None
        self._values: tuple[object, ...] = ()  # all that it had when its functions were last looked up
        self._functions: tuple[object, ...] = ()
        self._names = [name for name in names or vars(of) if callable(vars(of)[name])]
        self._look = operator.itemgetter(*self._names)

    def get(self) -> tuple[object, ...]:
        """The functions, and for a class their number: an added function hides an inherited one."""
        there = vars(self._of)
        if not self._is_whole:
            return self._look_up(there)
        values = tuple(there.values())  # one after the other, sooner compared than each is found by its name
        if not _are(values, self._values):
            self._values, self._functions = values, self._look_up(there)
        return self._functions

    def _look_up(self, there: Mapping[str, Any]) -> tuple[object, ...]:
        try:
            functions: tuple[object, ...] = self._look(there)
        except KeyError:  # one is gone
            functions = tuple(there.get(name) for name in self._names)
        if not isinstance(self._of, type):
            return functions
        if _TAGGED in there:
            functions = tuple(map(_untagged, functions))
        return *functions, len(there) - ("__slotnames__" in there) - (_TAGGED in there)  # the first: copyreg's

    def told(self, before: tuple[object, ...], after: tuple[object, ...]) -> str:
        """The change, in words: the first function that is another one."""
        of = f"torch.{self._of.__name__.removeprefix('torch.')}"
        others = (name for name, then, now in zip(self._names, before, after, strict=False) if then is not now)
        return next((f"{of}.{name}" for name in others), f"method of {of}")


_FUNCTIONS = [Functions(of, names) for of, names in _REPLACED.items()]


class Surroundings:
    """The settings that an example finds. Made before it begins; serves the next one too."""

    def __init__(self, settings: Sequence[Setting | Functions]) -> None:
        self._settings = settings
        self.settle()

    def settle(self) -> None:
        """Take the present state as the one that the example finds."""
        self._found = [setting.get() for setting in self._settings]

    def restore(self) -> list[str]:
        """Put back the settings that the example has changed. Return, in words and only once, those that cannot be put
        back.
        """
        left = []
        for place, (setting, before) in enumerate(zip(self._settings, self._found, strict=True)):
            after = setting.get()
            if after == before:
                continue
            if setting.put is None:
                left.append(f"another {setting.told(before, after)}")
                self._found[place] = after
            else:
                setting.put(before)
        return left


_of_the_process: Surroundings | None = None


def surroundings() -> Surroundings:
    """The surroundings of the process in which an example is about to begin.

    A supervised process has them as the last example has left them; in any other, others may have changed them since.
    """
    global _of_the_process
    if _of_the_process is None or not is_supervised():
        _of_the_process = Surroundings((*OF_THE_PROCESS, *_FUNCTIONS))
    return _of_the_process


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Exempt imports inside from the example's time, and keep what they set for the process: a process
    imports a module but once.
    """
    modules = len(sys.modules)
    with off_the_clock():
        yield
    if _of_the_process is not None and len(sys.modules) != modules:
        _of_the_process.settle()


@functools.cache
def imported(function: str) -> RankFunction:
    """The function of this name, see `worlds.contract.resolve`; it is imported once for all examples."""
    with importing():
        return resolve(function)
