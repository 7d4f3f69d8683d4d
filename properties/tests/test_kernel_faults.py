"""Each known fault of kernels is killed by the law that is about it."""

import pytest

from lockstep.properties import test_kernels as laws
from lockstep.properties.kernels.law import hold
from lockstep.properties.kernels.under_test import look_up_kernels
from lockstep.worlds.contract import World

FAULTS = [
    ("kernels_moving:FirstStride", laws.test_pack_puts_every_element_at_its_place),
    ("kernels_moving:RawAddress", laws.test_pack_puts_every_element_at_its_place),
    ("kernels_moving:NoMask", laws.test_pack_puts_every_element_at_its_place),
    ("kernels_moving:IndexOf16Bits", laws.test_pack_puts_every_element_at_its_place),
    ("kernels_moving:FixedGrid", laws.test_pack_puts_every_element_at_its_place),
    ("kernels_moving:FixedGrid", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("kernels_moving:TableOf64Tensors", laws.test_pack_puts_every_element_at_its_place),
    ("kernels_moving:TableOf64Tensors", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("kernels_moving:IndexOf32Bits", laws.test_elements_may_be_further_apart_than_2_to_the_31),
    ("kernels_moving:EmptyTensors", laws.test_unpack_after_pack_is_the_identity),
    ("kernels_moving:FirstDtype", laws.test_pack_casts_and_scales_with_one_rounding),
    ("kernels_moving:RoundsTwice", laws.test_unpack_averages_and_casts_with_one_rounding),
    ("kernels_moving:UnpacksSums", laws.test_unpack_averages_and_casts_with_one_rounding),
    ("kernels_moving:ReciprocalAlone", laws.test_average_scale_and_clip_are_one_pass_in_place),
    ("kernels_moving:Reciprocal", laws.test_average_scale_and_clip_are_one_pass_in_place),
    ("kernels_moving:Truncates", laws.test_a_cast_rounds_to_nearest_even_and_keeps_nan_and_infinity),
    ("kernels_moving:CastFlattens", laws.test_a_cast_rounds_to_nearest_even_and_keeps_nan_and_infinity),
    ("kernels_of_norms:SquaresIn16Bits", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("kernels_of_norms:SquaresOverflow", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("kernels_of_norms:AddsNorms", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("kernels_of_norms:NormOfTheSum", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("kernels_of_norms:NormUnscaled", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("kernels_of_norms:NormByTheGreatest", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    ("kernels_of_norms:NormOfNumbers", laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation),
    *(
        (fault, laws.test_the_coefficient_that_clips_is_that_of_the_averaged_gradient)
        for fault in (
            "kernels_of_norms:CoefficientOfTheSum",
            "kernels_of_norms:CoefficientScalesUp",
            "kernels_of_norms:CoefficientWithoutEpsilon",
            "kernels_of_norms:CoefficientOfNan",
            "kernels_of_norms:CoefficientBySquares",
        )
    ),
    ("kernels_of_norms:ClipsUnscaled", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("kernels_of_norms:ClipsByPlainNorm", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("kernels_of_norms:ClipsNanByOne", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("kernels_of_norms:ClipsInfinityToZero", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("kernels_of_norms:ClipsBySum", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("kernels_of_norms:CountsReplicas", laws.test_clipping_goes_by_the_norm_of_the_averaged_gradient),
    ("kernels_of_steps:StateInParamDtype", laws.test_a_fused_step_of_adamw_is_inside_its_enclosure),
    ("kernels_of_steps:StepOffByOne", laws.test_a_fused_step_of_adamw_is_inside_its_enclosure),
    ("kernels_of_steps:ParameterUpdatedApart", laws.test_a_fused_step_of_sgd_is_inside_its_enclosure),
    ("kernels_of_steps:SgdUnscaled", laws.test_a_fused_step_of_sgd_is_inside_its_enclosure),
    ("kernels_of_steps:AdamwUnscaled", laws.test_a_fused_step_of_adamw_is_inside_its_enclosure),
    ("kernels_of_steps:SgdSkipsNan", laws.test_a_fused_step_of_sgd_is_inside_its_enclosure),
    ("kernels_of_steps:AdamwClampsInfinity", laws.test_a_fused_step_of_adamw_is_inside_its_enclosure),
]


@pytest.mark.parametrize(("fault", "law"), FAULTS, ids=[name for name, _ in FAULTS])
def test_a_known_fault_is_killed_by_its_law(fault, law, sim: World) -> None:
    check, draws, always = law.kernel_law
    with pytest.raises(AssertionError):
        hold(check, look_up_kernels(f"lockstep.impls.faults.{fault}", sim), draws, always, shrink=False)
