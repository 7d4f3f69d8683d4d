"""P17: kernels give the oracle's results for any length, stride, offset, dtype, magnitude and values."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from lockstep.oracle.rounding import round_to_nearest
from lockstep.properties.kernels import cases, reference, steps
from lockstep.properties.kernels.case import Case, Tensor
from lockstep.properties.kernels.comparing import must_equal, must_lie
from lockstep.properties.kernels.law import kernel_law
from lockstep.properties.kernels.reference import Array
from lockstep.properties.kernels.under_test import Kernels
from lockstep.properties.kernels.variants import variants


@kernel_law(cases.moves(), {"pack": ()}, cases.LONG)
def test_pack_puts_every_element_at_its_place(kernels: Kernels, case: Case) -> None:
    """The bucket is the concatenation of all tensors, each in row-major order whatever its strides, bit for bit.

    Why: a collective sees only the bucket. Ranks must agree on its order even if their tensors have different layouts.

    Broken by kernels that take the first stride for all dimensions, or compute offsets in 32 bits:
    fla-org/flash-linear-attention#1080, databricks/megablocks#185.
    """
    must_equal(kernels.run_case("pack", case), [reference.packed(case)], numbers=False)


@kernel_law(cases.moves(), {"pack": (), "unpack": ()}, cases.LONG)
def test_unpack_after_pack_is_the_identity(kernels: Kernels, case: Case) -> None:
    """Unpacking restores all elements bit for bit, for any dtype, into memory that holds NaN. Nothing around the
    elements is written.

    Why: a tensor that is sent must come back to its place.

    Broken by empty tensors and by sizes that no block divides: NVIDIA-NeMo/Automodel#2997.
    """
    must_equal(
        kernels.run_case("round trip", case), [reference.values(t, case.kind) for t in case.tensors], numbers=False
    )


@kernel_law(cases.conversions(), {"pack": ("scale", "coefficient")}, cases.MIXED, some=True)
def test_pack_casts_and_scales_with_one_rounding(kernels: Kernels, case: Case) -> None:
    """Each element is computed in float32 and rounded once to the bucket's dtype, to nearest even. Dtypes may be mixed.

    Why: rounding twice, or computing in 16 bits, loses the digits that float32 gradients have.

    Broken by kernels that look only at the first tensor's dtype: hpcaitech/ColossalAI#675.
    """
    case = kernels.claimed_of("pack", case, ("scale", "coefficient"))
    must_equal(kernels.run_case("pack", replace(case, divisor=1.0)), [reference.converted(case)])


@kernel_law(cases.conversions(), {"unpack": ("divisor", "scale", "coefficient")}, cases.MIXED, some=True)
def test_unpack_averages_and_casts_with_one_rounding(kernels: Kernels, case: Case) -> None:
    """On the way back each element is divided in float32, with a correctly rounded quotient, and rounded once.

    Why: the mean must have the same bits on every rank and in every implementation.

    Broken by Triton's ``/``, which may be off by two floats even if the quotient is representable:
    triton-lang/triton#10661.
    """
    case = kernels.claimed_of("unpack", case, ("divisor", "scale", "coefficient"))
    must_equal(kernels.run_case("unpack", case), reference.unpacked(case))


@kernel_law(cases.conversions(), {"scale_": ("divisor", "scale", "coefficient")}, cases.MIXED, some=True)
def test_average_scale_and_clip_are_one_pass_in_place(kernels: Kernels, case: Case) -> None:
    """x becomes RN(x / N * scale * coefficient) computed in float32, and nothing else is written.

    Why: the bits must be the same everywhere. The coefficient is read on the device, so that nothing waits for the
    norm.
    """
    case = kernels.claimed("scale_", case)
    must_equal(kernels.run_case("scale_", case), reference.scaled(case, case.coefficient))


@kernel_law(cases.casts(), {"cast": ()}, cases.CASTS)
def test_a_cast_rounds_to_nearest_even_and_keeps_nan_and_infinity(
    kernels: Kernels, drawn: tuple[Tensor, str, str]
) -> None:
    """Every 16-bit value survives the way through float32. A float32 value is rounded once, also if it is subnormal or
    overflows. The result has the shape of the input.

    Why: a cast that truncates is biased towards zero, and gradients shrink. Triton's own interpreter truncates:
    triton-lang/triton#4972.
    """
    spec, kind, dtype = drawn
    wanted = reference.transformed(reference.values(spec, kind), dtype, 1.0, 1.0, None)
    must_equal(kernels.run("cast", tensors=[spec], kind=kind, dtype=dtype), [wanted])


LARGEST = float(np.finfo(np.float32).max)
MAGNITUDES = ("distinct", "general", "wide", "huge", "tiny", "special", "infinite", "nan")


@kernel_law(cases.conversions(MAGNITUDES, 10_000), {"norm": ()}, cases.NORMS)
def test_the_norm_of_a_list_is_the_norm_of_its_concatenation(kernels: Kernels, case: Case) -> None:
    """The norm lies inside the interval proved for float32 sums of squares in any order, even if squares overflow or
    underflow.

    It is the norm of the elements over the divisor and times the scale. If an element is NaN, the norm is NaN. Else, if
    one is infinite, the norm is infinite.

    Why: norms of many tensors are combined as squares, each once.

    Broken by squares in 16 bits, by adding norms instead of squares, and by counting replicated gradients once per
    rank: pytorch/pytorch#88955.
    """
    case = replace(kernels.claimed("norm", case), coefficient=None)
    (found,) = kernels.run_case("norm", case)
    is_norm(float(found[0]), reference.averages(case))


def is_norm(value: float, numbers: Array) -> None:
    """Raise AssertionError if a computed norm is outside its interval.

    An end beyond the largest float32 is infinity.
    """
    if not np.isfinite(numbers).all():
        wanted = np.nan if np.isnan(numbers).any() else np.inf
        if not np.array_equal(value, wanted, equal_nan=True):
            raise AssertionError(f"the norm is {value!r}, and must be {wanted!r}")
        return
    bound = reference.norm_enclosure(numbers)
    low, high = (round_to_nearest(end, "float32") for end in (bound.low, bound.high))
    if not low <= value <= high:
        raise AssertionError(f"the norm is {value!r}, and must lie in [{low!r}, {high!r}]")


@kernel_law(cases.conversions(("general", "wide", "huge", "tiny"), 10_000), {"norm": ()})
def test_a_norm_repeats_its_bits(kernels: Kernels, case: Case) -> None:
    """The same list gives the same bits every time.

    Why: ranks must clip alike, and runs must be repeatable.

    Broken by sums through atomics.
    """
    (found,) = kernels.run("norm", tensors=case.tensors, kind=case.kind, repeat=2)
    if len({x.tobytes() for x in found}) != 1:
        raise AssertionError(f"two runs gave {found.tolist()}")


@st.composite
def clipped(draw: st.DrawFn) -> tuple[Case, float]:
    """Gradients summed over N ranks, and the maximum relative to the norm: below, at or above it."""
    case = Case(
        draw(cases.lists(draw(variants()).dtypes, 10_000)),
        draw(st.sampled_from(MAGNITUDES)),
        divisor=draw(st.sampled_from((2.0, 3.0, 4.0, 7.0, 8.0))),
        scale=draw(st.sampled_from((1.0, 0.5, 1 / 3))),
    )
    return case, draw(st.sampled_from((0.5, 1 / 3, 1.0, 2.0)))


def limit(numbers: Array, part: float) -> float:
    """This part of the norm of the finite numbers; 1 if that is zero."""
    bound = reference.norm_enclosure(numbers[np.isfinite(numbers)])
    return min(round_to_nearest(part * float(bound.high), "float32"), LARGEST) if bound.high else 1.0


@kernel_law(clipped(), {"clip_coefficient": ("tensors", "max_norm")}, cases.CLIPS)
def test_the_coefficient_that_clips_is_that_of_the_averaged_gradient(
    kernels: Kernels, drawn: tuple[Case, float]
) -> None:
    """The coefficient is min(1, max_norm / (norm + 1e-6)) for any norm of the averages. It is NaN if the norm is NaN,
    and 0 if the norm is infinite.

    Why: the scaling kernel reads it on the device, so nobody sees a wrong one. It may be computed in float32 or
    float64, as a quotient, as a product with a reciprocal (torch), or as an inverse (DeepSpeed).
    """
    case, part = drawn
    case = replace(kernels.claimed("clip_coefficient", case), coefficient=None)
    numbers = reference.averages(case)
    max_norm = limit(numbers, part)
    (seen,) = kernels.run_case("clip_coefficient", case, max_norm=max_norm)
    found = float(seen[0])
    if not np.isfinite(numbers).all():
        wanted = reference.coefficient_of(np.nan if np.isnan(numbers).any() else np.inf, max_norm)
        if not np.array_equal(found, wanted, equal_nan=True):
            raise AssertionError(f"the coefficient is {found!r}, and must be {wanted!r}")
        return
    inside = reference.coefficients(reference.norm_enclosure(numbers), max_norm).round("float32")
    if not inside.contains([found]).all():
        limits = f"[{float(inside.low[0])!r}, {float(inside.high[0])!r}]"
        raise AssertionError(f"the coefficient is {found!r}, and must lie in {limits}")


@kernel_law(clipped(), {"average_and_clip_": ()}, cases.CLIPS)
def test_clipping_goes_by_the_norm_of_the_averaged_gradient(kernels: Kernels, drawn: tuple[Case, float]) -> None:
    """The averages are multiplied by min(1, max_norm / (norm + 1e-6)), where norm is the norm of the averages. This
    norm is returned.

    Why: clipping the sum, or each rank's own gradient, uses another norm, and ranks then disagree.

    The norm must lie inside its proved interval. Given the norm, gradients must have their exact bits if the
    coefficient is certainly 1. Otherwise they must be a result of one of the ways above of computing it. As in torch,
    all are NaN if the norm is NaN. If the norm is infinite, finite elements become zero and infinite ones NaN.
    """
    case, part = drawn
    case = replace(case, scale=kernels.claimed("average_and_clip_", case).scale)
    numbers = reference.averages(case)
    max_norm = limit(numbers, part)
    *out, norm = kernels.run_case("average_and_clip_", case, max_norm=max_norm)
    found = float(np.frombuffer(norm.tobytes(), np.float32)[0])
    is_norm(found, numbers)
    by_ours = reference.scaled(case, reference.coefficient_of(found, max_norm))
    factor = None
    if np.isfinite(numbers).all():
        factor = reference.coefficients(reference.before_rounding(found, numbers), max_norm)
    if factor is None or factor.low == 1:
        must_equal(out, by_ours)
    else:
        must_lie(out, reference.clipped(case, factor), by_ours)


@kernel_law(steps.shards(), {"sgd_step": ("lr",)}, steps.ALWAYS)
def test_a_fused_step_of_sgd_is_inside_its_enclosure(kernels: Kernels, shard: steps.Shard) -> None:
    """Masters and momentum are a possible result of a conforming float32 step. The parameter is the master, rounded
    once.

    A NaN gradient makes its element and state NaN. An infinite one leaves nothing finite.

    Why: the parameter that is gathered must be that of the master.

    Broken by state that passes through the parameter's dtype: databricks/flashoptim#2.
    """
    steps.check(kernels, shard, "sgd_step")


@kernel_law(steps.shards(), {"adamw_step": ("step", "lr", "betas", "eps", "weight_decay")}, steps.ALWAYS)
def test_a_fused_step_of_adamw_is_inside_its_enclosure(kernels: Kernels, shard: steps.Shard) -> None:
    """The same holds for AdamW. Its moments are compared too, because its parameters hide a wrong scale of all
    gradients.
    """
    steps.check(kernels, shard, "adamw_step")


@kernel_law(steps.shards(), {"sgd_step": ("lr",)})
def test_a_step_of_sgd_on_pieces_of_a_shard_is_the_step_on_the_whole(kernels: Kernels, shard: steps.Shard) -> None:
    """The bits are the same wherever the shard is cut, also at unaligned addresses and into empty pieces.

    Why: optimizers work element by element, so a ZeRO run may not depend on its world size.
    """
    steps.check_pieces(kernels, shard, "sgd_step")


@kernel_law(steps.shards(), {"adamw_step": ("step", "lr")})
def test_a_step_of_adamw_on_pieces_of_a_shard_is_the_step_on_the_whole(kernels: Kernels, shard: steps.Shard) -> None:
    """The same holds for AdamW."""
    steps.check_pieces(kernels, shard, "adamw_step")


@kernel_law(st.integers(2**31, 2**32), {"pack": (), "unpack": ()})
def test_elements_may_be_further_apart_than_2_to_the_31(kernels: Kernels, stride: int) -> None:
    """Offsets have 64 bits: elements that far apart are packed, and unpacked to their places.

    Why: 32-bit offsets wrap silently: NVIDIA/TransformerEngine#3136, triton-lang/triton#1058.
    """
    out = kernels.run("far", stride=stride, count=2)
    must_equal(out, [np.array([1, 2], np.uint8)] * 2, numbers=False)
