"""Run a kernel on a case. The world calls these functions by name. The input is JSON, the output bytes."""

import contextlib
import inspect
import itertools
import json
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lockstep.properties.kernels.arena import Placed
from lockstep.properties.kernels.case import Tensor
from lockstep.properties.kernels.error_notes import NamesItsArguments
from lockstep.properties.kernels.values import elements
from lockstep.properties.ranks import lookup

Request = Mapping[str, Any]
MAP_NORESERVE = 0x4000  # a Linux flag that Python's mmap has from 3.13 on


def describe(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Return ``functions``: the public functions of the implementation with the names of their arguments."""
    found = lookup.find(json.loads(payload))
    functions = {}
    for name, function in inspect.getmembers(found, callable):
        if not name.startswith("_"):
            with contextlib.suppress(TypeError, ValueError):
                functions[name] = list(inspect.signature(function).parameters)
    return {"functions": functions}


def run(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Run one call. Returns ``out``, the bytes of each result, and ``spilled``, the other places that were written."""
    request = json.loads(payload)
    kernels = NamesItsArguments(lookup.find(request["implementation"]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return OPERATIONS[request["operation"]](kernels, request, device)


def pack(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """Pack sources into a bucket that was poisoned before."""
    sources, bucket = _sources(request, device), _placed(request["bucket"], None, device)
    kernels.pack([source.tensor for source in sources], bucket.tensor, **_scaling(kernels.pack, request, device))
    return {"out": [bucket.bits()], "spilled": _spilled([bucket], sources)}


def unpack(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """Unpack a bucket into tensors that were poisoned before."""
    bucket = _placed(request["bucket"], request["kind"], device)
    targets = [_placed(spec, None, device) for spec in request["tensors"]]
    kernels.unpack(bucket.tensor, [target.tensor for target in targets], **_scaling(kernels.unpack, request, device))
    return {"out": [target.bits() for target in targets], "spilled": _spilled(targets, [bucket])}


def round_trip(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """Pack, and unpack into poisoned tensors."""
    sources, bucket = _sources(request, device), _placed(request["bucket"], None, device)
    targets = [_placed(spec, None, device) for spec in request["tensors"]]
    kernels.pack([source.tensor for source in sources], bucket.tensor, **_scaling(kernels.pack, {}, device))
    kernels.unpack(bucket.tensor, [target.tensor for target in targets], **_scaling(kernels.unpack, {}, device))
    return {"out": [target.bits() for target in targets], "spilled": _spilled([*targets, bucket], sources)}


def scale_(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """Scale in place."""
    targets = _sources(request, device)
    kernels.scale_([target.tensor for target in targets], **_scaling(kernels.scale_, request, device))
    return {"out": [target.bits() for target in targets], "spilled": _spilled(targets, [])}


def cast(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """Cast one tensor to another dtype."""
    (source,) = _sources(request, device)
    out = kernels.cast(source.tensor, getattr(torch, request["dtype"]))
    flat = torch.empty(out.numel(), dtype=out.dtype)  # copied, because without elements any strides count as contiguous
    flat.view(out.shape).copy_(out)
    return {"out": [flat.view(torch.uint8).numpy()], "spilled": _spilled([], [source]), "shape": tuple(out.shape)}


def norm(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """The norm of a list, ``repeat`` times."""
    sources = _sources(request, device)
    named = _scaling(kernels.norm, request, device)
    tensors = [source.tensor for source in sources]
    norms = [float(kernels.norm(tensors, **named)) for _ in range(request.get("repeat", 1))]
    return {"out": [np.array(norms, np.float32)], "spilled": _spilled([], sources)}


def clip_coefficient(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """The coefficient that clips a list."""
    sources = _sources(request, device)
    named = _scaling(kernels.clip_coefficient, request, device, ("divisor",))
    found = kernels.clip_coefficient([source.tensor for source in sources], request["max_norm"], **named)
    return {"out": [np.array([float(found)], np.float32)], "spilled": _spilled([], sources)}


def average_and_clip_(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """Average and clip in place; also returns the norm."""
    targets = _sources(request, device)
    found = kernels.average_and_clip_(
        [target.tensor for target in targets],
        request["divisor"],
        request["max_norm"],
        **_scaling(kernels.average_and_clip_, request, device, ()),
    )
    out = [*(target.bits() for target in targets), np.array([float(found)], np.float32).view(np.uint8)]
    return {"out": out, "spilled": _spilled(targets, [])}


def step(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """Run steps of ``sgd_step`` or ``adamw_step`` on a shard cut into pieces at ``cuts``; see `kernels.steps`."""
    count, steps = request["count"], request["steps"]
    names = ["master", *request["states"]]
    arrays = {name: _flat(count, "float32", offset, device) for offset, name in enumerate(names, start=1)}
    param = _flat(count, request["param"], 0, device)
    arrays["master"].tensor.copy_(_numbers("general", count, "float32", 1).to(device))
    for name in request["zeroed"]:
        arrays[name].tensor.zero_()
    bounds = [0, *request["cuts"], count]
    function, grads = getattr(kernels, request["function"]), []
    for t in range(1, steps + 1):
        values = elements(request["kind"], count, request["grad"], 10 + t)
        grad = Placed(Tensor((count,), request["grad"], t), values, device)
        grads.append(grad)
        counts = {"step": t, "first": t == 1}
        named = {**request["settings"], **{name: counts[name] for name in request["counted"]}}
        named |= _scaling(function, request, device, ("coefficient",))
        for begin, end in itertools.pairwise(bounds):
            piece = [placed.tensor[begin:end] for placed in (param, arrays["master"], grad)]
            states = [arrays[name].tensor[begin:end] for name in request["states"]]
            function(*piece, *states, **named)
    targets = [param, *arrays.values()]
    return {"out": [target.bits() for target in targets], "spilled": _spilled(targets, grads)}


def far(kernels: Any, request: Request, device: str) -> Mapping[str, Any]:
    """Pack elements more than 2**31 elements apart, and unpack them to their places.

    On a CPU the memory between them is only reserved and never touched, so that it costs nothing.
    """
    stride, count = request["stride"], request["count"]
    length = stride * (count - 1) + 4096
    if device == "cuda":
        memory = torch.empty(length, dtype=torch.uint8, device=device)
    else:
        reserved = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        memory = torch.frombuffer(reserved, dtype=torch.uint8)
    tensor = memory.as_strided((count,), (stride,), 7)
    tensor.copy_(torch.arange(1, count + 1, dtype=torch.uint8, device=device))
    bucket = torch.zeros(count, dtype=torch.uint8, device=device)
    kernels.pack([tensor], bucket, **_scaling(kernels.pack, {}, device))
    tensor.zero_()
    kernels.unpack(bucket, [tensor], **_scaling(kernels.unpack, {}, device))
    return {"out": [bucket.cpu().numpy(), tensor.clone().cpu().numpy()], "spilled": []}


OPERATIONS = {
    "pack": pack,
    "unpack": unpack,
    "round trip": round_trip,
    "scale_": scale_,
    "cast": cast,
    "norm": norm,
    "clip_coefficient": clip_coefficient,
    "average_and_clip_": average_and_clip_,
    "step": step,
    "far": far,
}


def _numbers(kind: str, count: int, dtype: str, seed: int) -> torch.Tensor:
    return torch.from_numpy(elements(kind, count, dtype, seed))


def _placed(data: Mapping[str, Any], kind: str | None, device: str) -> Placed:
    spec = Tensor.from_json(dict(data))
    return Placed(spec, None if kind is None else elements(kind, spec.count, spec.dtype, spec.seed), device)


def _flat(count: int, dtype: str, offset: int, device: str) -> Placed:
    return Placed(Tensor((count,), dtype, offset), None, device)


def _sources(request: Request, device: str) -> list[Placed]:
    return [_placed(spec, request["kind"], device) for spec in request["tensors"]]


def _scaling(
    kernel: Any, request: Request, device: str, names: tuple[str, ...] = ("divisor", "coefficient")
) -> dict[str, Any]:
    """The arguments that change the result or are required, as far as the function has them."""
    required: set[str] = set()
    with contextlib.suppress(TypeError, ValueError):
        found = inspect.signature(kernel).parameters.values()
        required = {each.name for each in found if each.default is each.empty}
    named: dict[str, Any] = {}
    for name in (*names, "scale"):
        value = request.get(name)
        if name == "coefficient" and (value is not None or name in required):
            named[name] = torch.tensor(1.0 if value is None else value, dtype=torch.float32, device=device)
        elif name != "coefficient" and (value not in (None, 1.0) or name in required):
            named[name] = 1.0 if value is None else value
    return named


def _spilled(targets: list[Placed], sources: list[Placed]) -> list[str]:
    """The places that were written but are no elements of a destination."""
    around = [f"around result {index}" for index, target in enumerate(targets) if target.spilled()]
    return around + [f"into source {index}" for index, source in enumerate(sources) if source.changed()]
