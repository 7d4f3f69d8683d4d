"""The elements of a case's tensors.

It uses NumPy alone, so that kernel and oracle compute the same ones from a few words.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lockstep.oracle.rounding import round_array

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16), "complex64": np.dtype(np.complex64)}
KINDS = ("distinct", "general", "wide", "huge", "tiny", "special", "infinite", "nan", "bits")


def elements(kind: str, count: int, dtype: str, seed: int) -> NDArray[Any]:
    """``count`` elements.

    The kinds:

        distinct    small integers that differ from their neighbors and between seeds, exact in every dtype
        general     normally distributed
        wide        normally distributed, times 2**-10 to 2**10
        huge, tiny  near the ends of the dtype's range
        infinite    normally distributed, with one infinity
        nan         normally distributed, with one infinity and one NaN
        special     NaN, infinities, zeros, subnormals, ties and ends of ranges
        bits        any bits
    """
    to = DTYPES[dtype]
    rng = np.random.default_rng([seed, count])
    if kind == "bits" or to.kind not in "fV":
        return rng.integers(0, 256, count * to.itemsize, dtype=np.uint8).view(to)
    if kind == "distinct":
        return ((np.arange(count) * 37 + 11 * seed) % 241 - 120).astype(to)
    if kind == "special":
        return np.resize(rng.permutation(special(dtype)), count)
    normal = np.clip(rng.standard_normal(count), -3.9, 3.9)
    if kind in ("infinite", "nan") and count:
        normal[rng.integers(count)] = rng.choice((-math.inf, math.inf))
        normal[rng.integers(count)] *= math.nan if kind == "nan" else 1
    top, bottom = (13, -20) if dtype == "float16" else (124, -140)
    exponents = np.full(count, {"huge": top, "tiny": bottom}.get(kind, 0))
    if kind == "wide":
        exponents = rng.integers(-10, 11, count)
    return round_array(np.ldexp(normal, exponents).astype(np.float64), dtype) if dtype != "float64" else normal


def special(dtype: str) -> NDArray[Any]:
    """Values that round or compare unlike ordinary numbers.

    In float32 this includes ties between neighbors of 16 bits.
    """
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 65504.0, 65519.0, 65520.0, 2.0**-14, 2.0**-24]
    edges += [2.0**-25, 2.0**-133, 2.0**-134, 2.0**-149, 2.0**-126, 3.3895313892515355e38, 3.4028234663852886e38]
    edges += [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-23, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 - 2.0**-9]
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.array([*edges, *(-x for x in edges)]).astype(np.float32)
        # NaN that rounding by integer addition would carry over into zero, and NaN that truncation would turn into
        # infinity.
        odd = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001], np.uint32).view(np.float32)
        return np.concatenate([numbers, odd]).astype(DTYPES[dtype])
