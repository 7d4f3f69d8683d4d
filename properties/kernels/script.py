"""A failing call of a kernel as a script of a few lines, without Lockstep if tensors are small."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.properties.kernels import device
from lockstep.properties.kernels.case import Tensor
from lockstep.properties.kernels.values import elements

FEW = 64  # the most elements of a tensor that are written out
VALUES = "from lockstep.properties.kernels.values import elements"


def script(name: str, functions: Mapping[str, list[str]], call: Mapping[str, Any]) -> list[str]:
    """The lines of a script; empty for a call with too many tensors.

    ``call``: its operation, named as in `runner`, and its arguments.
    """
    operation, tensors = call.get("operation"), [_spec(each) for each in call.get("tensors", ())]
    bucket = _spec(call.get("bucket", Tensor((0,))))
    if operation in (None, "step", "far") or len(tensors) > FEW:
        return []
    lines = [*_head(name), *[VALUES] * any(spec.count > FEW for spec in (*tensors, bucket)), ""]
    names = [f"t{number}" for number in range(len(tensors))]
    if operation != "unpack":
        lines += [_tensor(own, spec, call["kind"]) for own, spec in zip(names, tensors, strict=True)]
    kernel = "pack" if operation == "round trip" else operation
    shown, given = f"[{', '.join(names)}]", [f"[{', '.join(names)}]"]
    if operation == "unpack":
        lines += [_tensor("bucket", bucket, call["kind"]), *map(_empty, names, tensors)]
        given = ["bucket", shown]
    elif operation in ("pack", "round trip"):
        lines.append(_empty("bucket", bucket))
        given, shown = [shown, "bucket"], "bucket"
    elif operation == "cast":
        given = [names[0], f"torch.{call['dtype']}"]
    elif operation == "average_and_clip_":
        given += [repr(float(call["divisor"])), repr(float(call["max_norm"]))]
    elif operation == "clip_coefficient":
        given.append(repr(float(call["max_norm"])))
    given += _scaling(functions[kernel], call, ("divisor",) if operation != "average_and_clip_" else ())
    written = f"{_class(name)}.{kernel}({', '.join(given)})"
    if operation in ("cast", "norm", "clip_coefficient"):
        return [*lines, f"print({written})"]
    lines.append(f"norm = {written}" if operation == "average_and_clip_" else written)
    if operation == "round trip":
        outs = [f"out{number}" for number in range(len(names))]
        lines += [*map(_empty, outs, tensors), f"{_class(name)}.unpack(bucket, [{', '.join(outs)}])"]
        shown = f"[{', '.join(outs)}], [{', '.join(names)}]"
    return [*lines, f"print({shown}{', norm' if operation == 'average_and_clip_' else ''})"]


def _head(name: str) -> list[str]:
    place = name.rpartition(":")[0]
    own = _class(name)
    lines = ["import os", ""] if device.choose() == "interpreted" else []
    lines += ['os.environ["TRITON_INTERPRET"] = "1"'] if lines else []
    if place.endswith(".py"):
        path = Path(place).absolute()
        lines += ["import sys", f"sys.path.insert(0, {str(path.parent)!r})"]
        place = path.stem
    return [*lines, "import torch", f"from {place} import {own.partition('.')[0]}"]


def _spec(tensor: Any) -> Tensor:
    return tensor if isinstance(tensor, Tensor) else Tensor.from_json(tensor)


def _class(name: str) -> str:
    return name.rpartition(":")[2]


def _on() -> str:
    return "" if device.choose() == "interpreted" else ', device="cuda"'


def _tensor(name: str, spec: Tensor, kind: str) -> str:
    values = elements(kind, spec.count, spec.dtype, spec.seed)
    if spec.count > FEW:
        given = f"elements({kind!r}, {spec.count}, {spec.dtype!r}, {spec.seed})"
        flat = f"torch.from_numpy({given}.view('uint8')).view(torch.{spec.dtype})"
    elif values.dtype.kind in "fV" and np.isfinite(values.astype(np.float64)).all():
        flat = f"torch.tensor({[float(each) for each in values]}, dtype=torch.{spec.dtype})"
    else:  # written as bytes, because decimals cannot represent these bits
        flat = f"torch.tensor({values.view(np.uint8).tolist()}, dtype=torch.uint8).view(torch.{spec.dtype})"
    flat += ".cuda()" if _on() else ""
    if _is_plain(spec):
        return f"{name} = {flat}.reshape({spec.shape})"
    return f"{_empty(name, spec)}.copy_({flat}.reshape({spec.shape}))"


def _empty(name: str, spec: Tensor) -> str:
    if _is_plain(spec):
        return f"{name} = torch.zeros({spec.shape}, dtype=torch.{spec.dtype}{_on()})"
    reach = spec.offset + 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True))
    memory = f"torch.zeros({max(reach, spec.offset)}, dtype=torch.{spec.dtype}{_on()})"
    return f"{name} = {memory}.as_strided({spec.shape}, {spec.strides}, {spec.offset})"


def _is_plain(spec: Tensor) -> bool:
    return spec.offset == 0 and spec.strides == Tensor(spec.shape).strides


def _scaling(takes: list[str], call: Mapping[str, Any], more: tuple[str, ...]) -> list[str]:
    told = [f"{name}={float(call[name])!r}" for name in (*more, "scale") if name in takes and call.get(name, 1) != 1]
    if "coefficient" in takes and call.get("coefficient") is not None:
        told.append(f"coefficient=torch.tensor({float(call['coefficient'])!r}{_on()})")
    return told
