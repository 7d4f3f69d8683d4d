"""Each known fault of kernels is killed by the law that is about it."""

import pytest

from properties import test_kernels as laws
from properties.kernels.held import expects_failure, look_up_kernels
from worlds.contract import World

FAULTS = [
    ("FirstStride", laws.test_pack_puts_every_element_at_its_place),
    ("RawAddress", laws.test_pack_puts_every_element_at_its_place),
    ("NoMask", laws.test_pack_puts_every_element_at_its_place),
    ("IndexOf16Bits", laws.test_pack_puts_every_element_at_its_place),
    ("FixedGrid", laws.test_pack_puts_every_element_at_its_place),
    ("FixedGrid", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("TableOf64Tensors", laws.test_pack_puts_every_element_at_its_place),
    ("TableOf64Tensors", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("IndexOf32Bits", laws.test_elements_may_be_further_apart_than_2_to_the_31),
    ("EmptyTensors", laws.test_unpack_after_pack_is_the_identity),
    ("FirstDtype", laws.test_pack_casts_and_scales_with_one_rounding),
    ("RoundsTwice", laws.test_unpack_averages_and_casts_with_one_rounding),
    ("UnpacksSums", laws.test_unpack_averages_and_casts_with_one_rounding),
    ("ReciprocalAlone", laws.test_average_scale_and_clip_are_one_pass_in_place),
    ("Reciprocal", laws.test_average_scale_and_clip_are_one_pass_in_place),
    ("Truncates", laws.test_a_cast_rounds_to_nearest_even_and_keeps_nan_and_infinity),
    ("SquaresIn16Bits", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("SquaresOverflow", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("AddsNorms", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("NormOfTheSum", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("NormUnscaled", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("NormByTheGreatest", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("NormOfNumbers", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    *(
        (fault, laws.test_the_coefficient_that_clips_is_that_of_the_averaged_gradient)
        for fault in (
            "CoefficientOfTheSum",
            "CoefficientScalesUp",
            "CoefficientWithoutEpsilon",
            "CoefficientOfNan",
            "CoefficientBySquares",
        )
    ),
    ("ClipsUnscaled", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("ClipsByPlainNorm", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("ClipsNanByOne", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("ClipsInfinityToZero", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("ClipsBySum", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("CountsReplicas", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("StateInParamDtype", laws.test_a_fused_step_of_adamw_is_inside_its_enclosure),
    ("StepOffByOne", laws.test_a_fused_step_of_adamw_is_inside_its_enclosure),
    ("ParameterUpdatedApart", laws.test_a_fused_step_of_sgd_is_inside_its_enclosure),
    ("SgdUnscaled", laws.test_a_fused_step_of_sgd_is_inside_its_enclosure),
    ("AdamwUnscaled", laws.test_a_fused_step_of_adamw_is_inside_its_enclosure),
    ("SgdSkipsNan", laws.test_a_fused_step_of_sgd_is_inside_its_enclosure),
    ("AdamwClampsInfinity", laws.test_a_fused_step_of_adamw_is_inside_its_enclosure),
]


@pytest.mark.parametrize(("fault", "law"), FAULTS, ids=[name for name, _ in FAULTS])
def test_a_known_fault_is_killed_by_its_law(fault, law, sim: World) -> None:
    assert expects_failure(law, look_up_kernels(f"impls.faults.kernels:{fault}", sim))
