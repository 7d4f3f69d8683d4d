"""What an implementation may change for the whole process or thread that it runs on, and how one sees it."""

import contextlib
import gc
import io
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

_entered = contextlib.ExitStack()  # of this process: what is entered here is never left


def _enter(context: Any) -> None:
    context.__enter__()
    _entered.push(context)


def _replace(of: Any, name: str) -> None:
    usual = getattr(of, name)

    def replaced(*arguments: Any, **options: Any) -> Any:
        return usual(*arguments, **options)

    setattr(of, name, replaced)


# The change, what is seen of it, and what the report says is left: nothing where it can be put back.
CHANGES: Mapping[str, tuple[Callable[[], object], Callable[[], object], str]] = {
    "dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: str(torch.get_default_dtype()), ""),
    "determinism": (
        lambda: torch.use_deterministic_algorithms(True),
        torch.are_deterministic_algorithms_enabled,
        "",
    ),
    "no gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled, ""),
    "torch's threads": (lambda: torch.set_num_threads(3), torch.get_num_threads, ""),
    "filters": (lambda: warnings.simplefilter("error"), lambda: warnings.filters[0][0], ""),
    "numpy's errors": (lambda: np.seterr(all="raise"), lambda: np.geterr()["over"], ""),
    "an alarm": (lambda: signal.setitimer(signal.ITIMER_REAL, 60), lambda: signal.getitimer(signal.ITIMER_REAL)[0], ""),
    "an alarm of computing time": (
        lambda: signal.setitimer(signal.ITIMER_PROF, 60),
        lambda: signal.getitimer(signal.ITIMER_PROF)[0],
        "",
    ),
    "numpy's generator": (
        lambda: np.random.mtrand.set_bit_generator(np.random.PCG64(1)),
        lambda: type(np.random.mtrand.get_bit_generator()).__name__,
        "",
    ),
    "the device": (
        lambda: torch.set_default_device("meta"),
        lambda: torch.empty(1).device.type,
        "setting of a mode of torch's functions",
    ),
    "inference": (
        lambda: _enter(torch.inference_mode()),
        torch.is_inference_mode_enabled,
        "setting of torch's inference mode",
    ),
    "autocast": (
        lambda: _enter(torch.autocast("cpu")),
        lambda: torch.is_autocast_enabled("cpu"),
        "setting of torch's autocast",
    ),
    "saved tensors": (
        lambda: _enter(torch.autograd.graph.save_on_cpu()),
        lambda: torch._C._autograd._top_saved_tensors_default_hooks(True) is None,
        "setting of torch's hooks on saved tensors",
    ),
    "subnormals": (
        lambda: torch.set_flush_denormal(True),
        lambda: float(torch.tensor(5e-324, dtype=torch.float64) * 1),
        "",
    ),
    "anomalies": (
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.is_anomaly_enabled,
        "setting of torch's detection of anomalies",
    ),
    "a hook on all modules": (
        lambda: nn.modules.module.register_module_forward_hook(lambda *_: None),
        lambda: len(nn.modules.module._global_forward_hooks),
        "setting of torch's hooks on all modules and optimizers",
    ),
    "a function": (
        lambda: _replace(dist, "all_reduce"),
        lambda: dist.all_reduce.__name__,
        "torch.distributed.all_reduce",
    ),
    "a method": (
        lambda: _replace(torch.Tensor, "backward"),
        lambda: torch.Tensor.backward.__name__,
        "torch.Tensor.backward",
    ),
    "a method of handles": (lambda: _replace(dist.Work, "wait"), lambda: dist.Work.wait.__name__, "torch.Work.wait"),
    "a method of a layer": (
        lambda: _replace(nn.Linear, "forward"),
        lambda: nn.Linear.forward.__name__,
        "torch.Linear.forward",
    ),
    "a method that is inherited": (
        lambda: _replace(torch.Tensor, "mul_"),
        lambda: torch.Tensor.mul_.__name__,
        "method of torch.Tensor",
    ),
    "the folder": (lambda: os.chdir("/"), lambda: os.getcwd() == "/", "setting of the working folder"),
    "what is printed to": (
        lambda: setattr(sys, "stdout", io.StringIO()),
        lambda: type(sys.stdout).__name__,
        "setting of the standard streams",
    ),
    "what is read from": (
        lambda: os.dup2(1, 0),
        lambda: os.fstat(0).st_ino == os.fstat(1).st_ino,
        "setting of the standard streams",
    ),
    "a signal": (
        lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN,
        "setting of what signals do",
    ),
    "a signal of computing time": (
        lambda: signal.signal(signal.SIGPROF, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGPROF) is signal.SIG_IGN,
        "setting of what signals do",
    ),
    "a limit": (
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200,
        "setting of the limits on resources",
    ),
    "recursion": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit, "setting of the limit on recursion"),
    "garbage": (gc.disable, gc.isenabled, "setting of the collection of garbage"),
    "the path": (
        lambda: sys.path.insert(0, "/nowhere"),
        lambda: "/nowhere" in sys.path,
        "setting of the path of imports",
    ),
    "tracing": (
        lambda: sys.setprofile(lambda *_: None),
        lambda: sys.getprofile() is None,
        "setting of the tracing of calls",
    ),
}


def compiling(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """As many layers as the payload says, compiled whole; what runs then, and in which process."""
    layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(int(payload))))
    compiled = torch.compile(layers, backend="eager", fullgraph=True)
    return {"same": torch.equal(compiled(torch.ones(1, 2)), layers(torch.ones(1, 2))), "process": os.getpid()}


def compiling_and_replacing(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What torch too replaces when it first compiles."""
    compiling("1", rank, world_size)
    _replace(nn.Module, "__init__")
    return {}


OF_A_MAIN_THREAD = ("a signal", "a signal of computing time")  # and no simulated rank runs on one


def change(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Changes what the payload names, and never puts it back. What was seen of it before and after."""
    make, see, _ = CHANGES[payload]
    before = see()
    make()
    return {"before": before, "after": see()}


def see(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What is seen of what the payload names."""
    return {"before": CHANGES[payload][1]()}
