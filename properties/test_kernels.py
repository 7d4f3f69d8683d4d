"""P17: kernels give what the oracle says, whatever length, stride, offset, dtype, magnitude and values."""

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

    Why: a bucket is all that a collective sees, so that ranks must agree on its order though their tensors be laid out
    differently. Broken by kernels that take the first stride for all dimensions, or compute offsets in 32 bits:
    fla-org/flash-linear-attention#1080, databricks/megablocks#185.
    """
    must_equal(kernels.run_case("pack", case), [reference.packed(case)], numbers=False)


@kernel_law(cases.moves(), {"pack": (), "unpack": ()}, cases.LONG)
def test_unpack_after_pack_is_the_identity(kernels: Kernels, case: Case) -> None:
    """Bit for bit, for any dtype, into memory that holds NaN; nothing around the elements is written.

    Why: what is sent comes back to where it was. Broken by empty tensors and by sizes that no block divides:
    NVIDIA-NeMo/Automodel#2997.
    """
    must_equal(
        kernels.run_case("round trip", case), [reference.values(t, case.kind) for t in case.tensors], numbers=False
    )


@kernel_law(cases.conversions(), {"pack": ("scale", "coefficient")}, cases.MIXED, some=True)
def test_pack_casts_and_scales_with_one_rounding(kernels: Kernels, case: Case) -> None:
    """Each element is computed in float32 and rounded to the bucket's dtype once, to nearest even; dtypes may be mixed.

    Why: two roundings, or arithmetic in 16 bits, lose what float32 gradients were kept for. Broken by kernels that look
    at the first tensor's dtype only: hpcaitech/ColossalAI#675.
    """
    case = kernels.claimed_of("pack", case, ("scale", "coefficient"))
    must_equal(kernels.run_case("pack", replace(case, divisor=1.0)), [reference.converted(case)])


@kernel_law(cases.conversions(), {"unpack": ("divisor", "scale", "coefficient")}, cases.MIXED, some=True)
def test_unpack_averages_and_casts_with_one_rounding(kernels: Kernels, case: Case) -> None:
    """The same on the way back; the division is correctly rounded.

    Why: the mean must be the same bits on every rank and in every implementation. Broken by Triton's ``/``, which may
    be off by two floats even where the quotient is representable: triton-lang/triton#10661.
    """
    case = kernels.claimed_of("unpack", case, ("divisor", "scale", "coefficient"))
    must_equal(kernels.run_case("unpack", case), reference.unpacked(case))


@kernel_law(cases.conversions(), {"scale_": ("divisor", "scale", "coefficient")}, cases.MIXED, some=True)
def test_average_scale_and_clip_are_one_pass_in_place(kernels: Kernels, case: Case) -> None:
    """x becomes RN(x / N * scale * coefficient) computed in float32, and nothing else is written.

    Why: as above; the coefficient is read on the device, so that nothing waits for the norm.
    """
    case = kernels.claimed("scale_", case)
    must_equal(kernels.run_case("scale_", case), reference.scaled(case, case.coefficient))


@kernel_law(cases.casts(), {"cast": ()}, cases.CASTS)
def test_a_cast_rounds_to_nearest_even_and_keeps_nan_and_infinity(
    kernels: Kernels, drawn: tuple[Tensor, str, str]
) -> None:
    """Every value of 16 bits survives the way through float32; float32 is rounded once, subnormals and overflow too.
    The result has the shape of what was cast.

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
    """Inside the interval proved for float32 sums of squares in any order, also where squares overflow or underflow.

    That of the elements over the divisor and times the scale. With NaN among them it is NaN, else with an infinity
    infinite.

    Why: norms of many tensors are added as squares, once each. Broken by squares taken in 16 bits, by norms added
    instead of squares, and by replicated gradients counted once per rank: pytorch/pytorch#88955.
    """
    case = replace(kernels.claimed("norm", case), coefficient=None)
    (found,) = kernels.run_case("norm", case)
    is_norm(float(found[0]), reference.averages(case))


def is_norm(value: float, numbers: Array) -> None:
    """AssertionError where a computed norm is not in its interval; an end beyond the largest float32 is infinity."""
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

    Why: ranks must clip alike, and runs must be repeatable. Broken by sums through atomics.
    """
    (found,) = kernels.run("norm", tensors=case.tensors, kind=case.kind, repeat=2)
    if len({x.tobytes() for x in found}) != 1:
        raise AssertionError(f"two runs gave {found.tolist()}")


@st.composite
def clipped(draw: st.DrawFn) -> tuple[Case, float]:
    """Gradients summed over N ranks, and the maximum as a part of the norm: below, at or above it."""
    case = Case(
        draw(cases.lists(draw(variants()).dtypes, 10_000)),
        draw(st.sampled_from(MAGNITUDES)),
        divisor=draw(st.sampled_from((2.0, 3.0, 4.0, 7.0, 8.0))),
        scale=draw(st.sampled_from((1.0, 0.5, 1 / 3))),
    )
    return case, draw(st.sampled_from((0.5, 1 / 3, 1.0, 2.0)))


def limit(numbers: Array, part: float) -> float:
    """So large a part of the norm of what is finite; 1 where that is zero."""
    bound = reference.norm_enclosure(numbers[np.isfinite(numbers)])
    return min(round_to_nearest(part * float(bound.high), "float32"), LARGEST) if bound.high else 1.0


@kernel_law(clipped(), {"clip_coefficient": ("tensors", "max_norm")}, cases.CLIPS)
def test_the_coefficient_that_clips_is_that_of_the_averaged_gradient(
    kernels: Kernels, drawn: tuple[Case, float]
) -> None:
    """It is min(1, max_norm / (norm + 1e-6)), of any norm that the averages may have; NaN where that is, and 0 where it
    is infinite.

    Why: it is read on the device by whoever scales, and a wrong one is seen by nobody. In float32 or float64, and as a
    quotient, a product with a reciprocal (torch) or an inverse (DeepSpeed).
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
    """The averages are multiplied by min(1, max_norm / (norm + 1e-6)) with the norm of the averages, which is returned.

    Why: clipping the sum, or every rank's own gradient, scales by another norm, and ranks then disagree. The norm is
    inside its proved interval; given the norm, the gradients are held to their bits where the coefficient is certainly
    1, and else to what a coefficient that is computed in one of the ways above leaves. As in torch, they are all NaN
    where the norm is, and with an infinite norm what is finite becomes zero and what is infinite NaN.
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
    """Masters and momentum are what any conforming float32 step gives; the parameter is the master, rounded once.

    A gradient of NaN makes NaN of its element and state, and an infinite one leaves nothing finite.

    Why: the parameter that is gathered must be the master's. Broken by state that goes through the parameter's dtype:
    databricks/flashoptim#2.
    """
    steps.check(kernels, shard, "sgd_step")


@kernel_law(steps.shards(), {"adamw_step": ("step", "lr", "betas", "eps", "weight_decay")}, steps.ALWAYS)
def test_a_fused_step_of_adamw_is_inside_its_enclosure(kernels: Kernels, shard: steps.Shard) -> None:
    """The same for AdamW; its moments are compared too, as its parameters hide a wrong scale of all gradients."""
    steps.check(kernels, shard, "adamw_step")


@kernel_law(steps.shards(), {"sgd_step": ("lr",)})
def test_a_step_of_sgd_on_pieces_of_a_shard_is_the_step_on_the_whole(kernels: Kernels, shard: steps.Shard) -> None:
    """Bit for bit, wherever the shard is cut, also at addresses that are not aligned, and into empty pieces.

    Why: optimizers work element by element, so a ZeRO run may not depend on its world size.
    """
    steps.check_pieces(kernels, shard, "sgd_step")


@kernel_law(steps.shards(), {"adamw_step": ("step", "lr")})
def test_a_step_of_adamw_on_pieces_of_a_shard_is_the_step_on_the_whole(kernels: Kernels, shard: steps.Shard) -> None:
    """The same for AdamW."""
    steps.check_pieces(kernels, shard, "adamw_step")


@kernel_law(st.integers(2**31, 2**32), {"pack": (), "unpack": ()})
def test_elements_may_be_further_apart_than_2_to_the_31(kernels: Kernels, stride: int) -> None:
    """Offsets have 64 bits: elements that far apart are packed, and unpacked to where they came from.

    Why: 32-bit offsets wrap, silently: NVIDIA/TransformerEngine#3136, triton-lang/triton#1058.
    """
    out = kernels.run("far", stride=stride, count=2)
    must_equal(out, [np.array([1, 2], np.uint8)] * 2, numbers=False)
