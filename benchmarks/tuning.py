"""Variants of a program of `pack`: more or fewer bytes, on more or fewer warps, measured on a GPU.

The kernels have one choice, for all GPUs; this says what another would give.
"""

from collections.abc import Iterator
from typing import Any
from unittest import mock

from lockstep.benchmarks import kernels
from lockstep.benchmarks.timing import compare
from lockstep.impls.kernels import pack, table
from lockstep.impls.kernels.launch import WARPS, Launcher

BYTES = (4096, 8192, 16384)
WARPS_TRIED = (2, WARPS, 8)


def choices() -> Iterator[tuple[str, int, int]]:
    """Bytes and warps of a program, in words and as numbers."""
    for nbytes in BYTES:
        for warps in WARPS_TRIED:
            yield f"{nbytes} bytes on {warps} warps", nbytes, warps


def shares(size: float, tensors: int, nbytes: int, warps: int, left: float) -> dict[str, float]:
    """By list of so many MiB, the share of the copy's bandwidth that `pack` reaches with such programs."""
    found = {}
    launcher = Launcher(pack._rewrite, warps=warps)
    with (
        mock.patch.object(table, "BYTES", nbytes),
        mock.patch.object(pack, "BYTES", nbytes),
        mock.patch.object(pack, "_REWRITE", launcher),
    ):
        for label, dtype, shapes in kernels.lists((size,), tensors):
            if label.startswith(f"{size:g} MiB") and "odd" not in label:
                contest = next(iter(kernels.movers(shapes, dtype)))
                calls = {"pack": contest.ours["table kept"], "copy": contest.peers["copy"]}
                found[label] = share(compare(calls, contest.sets, frozenset(calls)))
    return found


def share(took: dict[str, dict[str, Any]]) -> float:
    """Of the copy's bandwidth."""
    ours, copy = (took[name]["graph"] or took[name]["eager"] for name in ("pack", "copy"))
    return round(float(copy / ours), 3)
