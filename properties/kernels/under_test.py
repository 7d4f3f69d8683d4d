"""Kernels under test: a namespace of functions, and the supervised process in which each case runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lockstep.properties.kernels import device
from lockstep.properties.kernels.case import Case, Tensor
from lockstep.properties.kernels.reference import Array
from lockstep.worlds.contract import Job, RankError, World

Functions = Mapping[str, list[str]]
LIMIT = 60.0  # seconds for one case: a GPU compiles a kernel when it first meets a dtype


@dataclass(frozen=True)
class Kernels:
    """An implementation's kernels, and the supervised process in which they run.

    ``examples``: of each law; None: those of the profile. ``called``: the last operation, and its arguments.
    """

    name: str
    world: World
    functions: Functions
    examples: int | None = None
    called: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def run(self, operation: str, **request: Any) -> list[Array]:
        """The results of one case, as bytes. Raises AssertionError if it fails or writes to other memory."""
        self.called.clear()
        self.called.update(request, operation=operation)
        data = {"implementation": self.name, "operation": operation, **request}
        (report,) = self.world.run(
            Job("lockstep.properties.kernels.runner:run", json.dumps(data, default=plain), 1, limit=LIMIT)
        )
        if report.result is None:
            assert report.error is not None
            if device.choose() == "compiled":
                self.world.close()  # a GPU's context does not survive a wrong access
            raise AssertionError(f"{failed(operation, report.error)}\n{report.error.details[-1500:]}")
        if report.result["spilled"]:
            raise AssertionError(f"{operation} wrote {' and '.join(report.result['spilled'])}")
        given, shape = request.get("tensors", ()), report.result.get("shape")
        if shape is not None and shape != given[0].shape:  # set for operations whose result has the shape of the input
            raise AssertionError(f"{operation} returned {shape}, and was given {given[0].shape}")
        out: list[Array] = report.result["out"]
        return out

    def claimed(self, function: str, case: Case) -> Case:
        """The case without a divisor, scale or coefficient for which the function has no argument."""
        lacking = {"divisor", "scale", "coefficient"} - set(self.functions[function])
        return replace(case, **{name: getattr(Case, name) for name in lacking})

    def claimed_of(self, function: str, case: Case, arguments: Sequence[str]) -> Case:
        """The same. If one of these arguments is missing, all dtypes are equal, because the function need not cast."""
        if not set(arguments) <= set(self.functions[function]):
            alike = tuple(replace(tensor, dtype=case.bucket.dtype) for tensor in case.tensors)
            case = replace(case, tensors=alike)
        return self.claimed(function, case)

    def run_case(self, operation: str, case: Case, **more: Any) -> list[Array]:
        """Run an operation on a case."""
        return self.run(operation, **{**asdict(case), **more})


def failed(operation: str, error: RankError) -> str:
    """The error in the process that ran a case, in one line. The last note holds the kernel's call."""
    (first, *_) = error.message.splitlines() or [""]
    if error.kind == "raised" and error.notes:
        return f"{error.notes[-1]} raised {first}"
    return f"{operation}: {error.kind}: {first}"


def look_up_kernels(name: str, world: World) -> Kernels:
    """The named kernels. Raises RuntimeError if they cannot be imported."""
    (report,) = world.run(Job("lockstep.properties.kernels.runner:describe", json.dumps(name), 1, limit=LIMIT))
    if report.result is None:
        raise RuntimeError(f"{name}: {report.error.message if report.error else 'no answer'}")
    return Kernels(name, world, report.result["functions"])


def plain(value: Any) -> Any:
    """Convert a value that JSON does not know."""
    return asdict(value) if isinstance(value, Tensor) else float(value)
