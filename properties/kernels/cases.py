"""Strategies of the laws of kernels: lists of tensors with any shape, stride, offset and dtype, and their values."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from lockstep.properties.kernels.case import Case, Tensor
from lockstep.properties.kernels.values import KINDS
from lockstep.properties.kernels.variants import FACTORS, NUMBERS, variants

MOVED = (*NUMBERS, "float64", "int8", "uint8", "int16", "int32", "int64", "complex64")
# Lengths at which kernels tend to fail: around the sizes of blocks and vectors, 2**15 and 2**16.
EDGES = tuple(length + by for length in (4, 8, 16, 128, 256, 1024, 2048, 4096, 8192, 2**15, 2**16) for by in (-1, 0, 1))

LONGEST = 139_267  # a prime beyond 2**17, so far that the norm of the first 2**17 elements alone is visibly too small


def lengths(most: int = 70_000) -> st.SearchStrategy[int]:
    """A few elements, or about as many as one of the `EDGES`."""
    return st.integers(0, 40) | st.sampled_from([edge for edge in EDGES if edge <= most])


@st.composite
def tensors(draw: st.DrawFn, dtypes: Sequence[str], seed: int, most: int = 70_000) -> Tensor:
    """One tensor: long and flat, or small with up to four dimensions; contiguous or not."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(
        st.lists(st.integers(0, 5), max_size=4).map(tuple)
        | lengths(most).map(lambda length: (length,))
        | st.tuples(st.sampled_from((3, 64, 130)), st.sampled_from((65, 128)))
    )
    offset = draw(st.integers(0, 9))
    if not shape or draw(st.booleans()):
        return Tensor(shape, dtype, offset, seed=seed)
    order = tuple(draw(st.permutations(range(len(shape)))))
    steps = draw(st.tuples(*(st.sampled_from((1, 1, 2, 3)) for _ in shape)))
    return Tensor(shape, dtype, offset, order, steps, seed)


@st.composite
def lists(draw: st.DrawFn, dtypes: Sequence[str], longest: int = 70_000) -> tuple[Tensor, ...]:
    """A few tensors, few of them long; sometimes dozens of small ones."""
    if draw(st.integers(0, 19)) == 19:
        sizes = draw(st.lists(st.integers(0, 9), min_size=20, max_size=40))
        return tuple(Tensor((size,), dtypes[seed % len(dtypes)], seed=seed) for seed, size in enumerate(sizes))
    kinds = draw(st.lists(st.sampled_from((300, 300, 300, longest)), max_size=6))
    return tuple(draw(tensors(dtypes, seed, most)) for seed, most in enumerate(kinds))


@st.composite
def moves(draw: st.DrawFn) -> Case:
    """A case with one dtype, for operations that only move bits."""
    dtype = draw(st.sampled_from(MOVED))
    chosen = draw(lists([dtype]))
    bucket = Tensor((sum(tensor.count for tensor in chosen),), dtype, draw(st.integers(0, 9)))
    return Case(chosen, draw(st.sampled_from(("distinct", "bits"))), bucket)


@st.composite
def conversions(draw: st.DrawFn, kinds: Sequence[str] = KINDS, longest: int = 70_000) -> Case:
    """A case with several dtypes, with division, scaling, a coefficient on the device, and rounding."""
    variant = draw(variants())
    chosen = draw(lists(variant.dtypes, longest))
    count = sum(tensor.count for tensor in chosen)
    return Case(
        chosen,
        draw(st.sampled_from(kinds)),
        Tensor((count,), variant.bucket, draw(st.integers(0, 9)), seed=97),
        draw(st.sampled_from(variant.divisors)),
        draw(st.sampled_from((1.0, 0.5, 1 / 3, 0.1))),
        draw(st.sampled_from(FACTORS)) if variant.coefficient else None,
    )


@st.composite
def casts(draw: st.DrawFn) -> tuple[Tensor, str, str]:
    """A tensor, the kind of its values, and the dtype to cast to."""
    return (
        draw(tensors(NUMBERS, 1)),
        draw(st.sampled_from(("distinct", "special", "bits", "wide", "huge", "tiny"))),
        draw(st.sampled_from(NUMBERS)),
    )


def bucketed(*tensors: Tensor, kind: str = "distinct", bucket: str = "", **named: Any) -> Case:
    """A case made by hand with a bucket that fits; of the first tensor's dtype unless ``bucket`` names another one."""
    count = sum(tensor.count for tensor in tensors)
    return Case(
        tensors, kind, Tensor((count,), bucket or (tensors[0].dtype if tensors else "float32"), 0, seed=97), **named
    )


def many(*dtypes: str) -> tuple[Tensor, ...]:
    """130 tensors of up to three elements: more than tables with 64 or 128 entries can hold."""
    return tuple(Tensor((1 + seed % 3,), dtypes[seed % len(dtypes)], seed=seed) for seed in range(130))


LONG = (
    bucketed(Tensor((2**15 + 1,), "bfloat16"), Tensor((3,), "bfloat16", seed=1)),
    bucketed(Tensor((2**16 - 1,)), Tensor((2**16 + 1,), seed=1)),
    bucketed(Tensor((257, 129), order=(0, 1), steps=(1, 1)), Tensor((0,)), Tensor((), seed=1)),
    bucketed(Tensor((LONGEST,))),
    bucketed(*many("float32")),
    bucketed(),
)
MIXED = (
    bucketed(Tensor((5,)), Tensor((8195,), "bfloat16", seed=1), Tensor((7,), "float16", seed=2), bucket="bfloat16"),
    bucketed(Tensor((9,), "float16"), Tensor((9,), "bfloat16", seed=1), bucket="float32"),
    bucketed(Tensor((40,)), Tensor((40,), "float16", seed=1), kind="special", bucket="float16", scale=1 / 3),
    bucketed(Tensor((100,)), kind="special", bucket="bfloat16"),
    bucketed(Tensor((8193,)), Tensor((9,), "bfloat16", seed=1), kind="wide", divisor=7.0, coefficient=0.7),
    bucketed(Tensor((LONGEST,)), kind="general", divisor=7.0, scale=1 / 3),
    bucketed(*many(*NUMBERS), kind="general", divisor=7.0, scale=1 / 3),
    bucketed(),
)
NORMS = (
    *(bucketed(Tensor((33,), dtype), Tensor((3, 2), dtype, seed=1), kind="wide") for dtype in NUMBERS),
    *(bucketed(Tensor((200,)), Tensor((3,), seed=1), kind=kind) for kind in ("huge", "tiny", "infinite", "nan")),
    bucketed(Tensor((200,)), divisor=3.0),
    bucketed(Tensor((200,), "bfloat16"), Tensor((9,), "float16", seed=1), kind="wide", scale=1 / 3),
    bucketed(Tensor((LONGEST,))),
    bucketed(*many("float32")),
    bucketed(),
)
CLIPS = (
    (bucketed(Tensor((4160,)), kind="huge", divisor=2.0), 0.5),  # a norm that overflows float32
    *((bucketed(Tensor((200,)), kind=kind, divisor=3.0), 0.5) for kind in ("huge", "tiny", "infinite", "nan")),
    (bucketed(Tensor((33,)), Tensor((9,), "bfloat16", seed=1), kind="general", divisor=2.0, scale=1 / 3), 0.5),
    (bucketed(Tensor((LONGEST,)), divisor=2.0), 0.5),
    (bucketed(*many("float32"), divisor=2.0), 0.5),
)
CASTS = (
    *((Tensor((100,), dtype), "special", to) for dtype in NUMBERS for to in NUMBERS),
    (Tensor((LONGEST,)), "general", "bfloat16"),
    (Tensor((0,), order=(0,), steps=(2,)), "distinct", "float32"),
)
