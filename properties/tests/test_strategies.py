"""What the strategies can produce, what they shrink to, and how much of what they draw is of use."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from lockstep.oracle.events import (
    ActAlone,
    Backward,
    Clip,
    CopyGradients,
    DropLoss,
    Duplicate,
    EndJoin,
    Evaluate,
    Finish,
    Freeze,
    Join,
    Load,
    Move,
    Raise,
    Replace,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    SwapWeights,
    Write,
    ZeroGrad,
)
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.joining import DIVISORS
from lockstep.properties.claims import Claims
from lockstep.properties.strategies import MOST_PARAMETERS, MOST_RANKS, permutation
from lockstep.properties.strategies.traits import buckets, cap_beyond_a_parameter, is_ragged
from lockstep.properties.tests.of_scenarios import (
    ALL,
    PLAIN,
    Holds,
    cap_off_by,
    drawn,
    first_gone,
    has,
    in_order,
    norm_at,
    of_one_dtype,
    present_differs,
    sets_after_a_step,
    shares_a_bucket,
    skips_a_step_in_the_middle,
    synchronizing,
    tied_across_units,
    used_only_earlier,
    used_twice,
    windows,
)


def can_produce(holds: Holds, claims: Claims = ALL, has: tuple[str, ...] = ()) -> Callable[[], None]:
    """A test that some scenario of those claims is like that; of those that have some features, if it takes them."""

    def test() -> None:
        assert any(map(holds, drawn(claims, 300, has) if has else drawn(claims)))

    return test


can_produce_where_ranks_run_out = partial(can_produce, has=("joins",))
can_produce_where_ranks_run_out_twice = partial(can_produce, has=("joins twice",))


test_can_produce_1_rank = can_produce(lambda s: s.world_size == 1)
test_can_produce_2_ranks = can_produce(lambda s: s.world_size == 2)
test_can_produce_3_ranks = can_produce(lambda s: s.world_size == 3)
test_can_produce_4_ranks = can_produce(lambda s: s.world_size == 4)
test_can_produce_5_ranks = can_produce(lambda s: s.world_size == 5)
test_can_produce_6_ranks = can_produce(lambda s: s.world_size == 6)
test_can_produce_7_ranks = can_produce(lambda s: s.world_size == 7)
test_can_produce_8_ranks = can_produce(lambda s: s.world_size == 8)
test_can_produce_several_buckets_one_of_several_parameters = can_produce(
    lambda s: len(buckets(s)) > 1 and shares_a_bucket(s)
)
test_can_produce_three_buckets_or_more_the_last_ragged = can_produce(lambda s: len(buckets(s)) > 2 and is_ragged(s))
test_can_produce_three_buckets_of_one_dtype_the_last_ragged = can_produce(
    lambda s: len(buckets(s)) > 2 and is_ragged(s) and of_one_dtype(s), Claims(bucket_cap=True), has=("cap",)
)
test_can_produce_a_cap_as_large_as_a_parameter = can_produce(cap_off_by(0))
test_can_produce_a_cap_one_byte_smaller_than_a_parameter = can_produce(cap_off_by(-1))
test_can_produce_a_cap_one_byte_larger_than_a_parameter = can_produce(cap_off_by(1))
test_can_produce_a_cap_one_element_smaller_than_a_parameter = can_produce(cap_beyond_a_parameter(-1))
test_can_produce_a_cap_one_element_larger_than_a_parameter = can_produce(cap_beyond_a_parameter(1))
test_can_produce_a_cap_that_just_holds_the_last_two_of_three_of_one_size = can_produce(
    lambda s: (
        len({each.nbytes for each in s.parameters[-3:]}) == 1 < 3 <= len(s.parameters)
        and s.bucket_cap == 2 * s.parameters[0].nbytes
    )
)
test_can_produce_a_cap_of_zero = can_produce(lambda s: s.bucket_cap == 0)
test_can_produce_no_cap = can_produce(lambda s: s.bucket_cap is None)
test_can_produce_a_frozen_parameter = can_produce(lambda s: not all(p.trainable for p in s.parameters))
test_can_produce_a_frozen_first_parameter = can_produce(lambda s: not s.parameters[0].trainable)
test_can_produce_several_dtypes = can_produce(lambda s: len({p.dtype for p in s.parameters}) > 1)
test_can_produce_float64_alone = can_produce(lambda s: {p.dtype for p in s.parameters} == {"float64"}, PLAIN)
test_can_produce_a_parameter_of_no_dimensions = can_produce(lambda s: any(p.shape == () for p in s.parameters))
test_can_produce_a_matrix = can_produce(lambda s: any(len(p.shape) == 2 for p in s.parameters))
test_can_produce_the_most_parameters = can_produce(lambda s: len(s.parameters) == MOST_PARAMETERS)
test_can_produce_absent_parameters = can_produce(
    lambda s: any(len(o) < len(s.parameters) for b in s.microbatches for o in b.orders)
)
test_can_produce_other_absent_parameters_on_other_ranks = can_produce(
    lambda s: any(map(present_differs, s.microbatches))
)
test_can_produce_a_parameter_that_nobody_uses = can_produce(
    lambda s: (
        {i for i, p in enumerate(s.parameters) if p.trainable}
        - {i for b in s.microbatches for o in b.orders for i in o}
    )
)
test_can_produce_other_orders_on_other_ranks = can_produce(
    lambda s: any(len(set(b.orders)) > 1 for b in s.microbatches), PLAIN
)
test_can_produce_other_orders_in_other_steps = can_produce(lambda s: len({b.orders for b in s.microbatches}) > 2, PLAIN)
test_can_produce_a_parameter_used_only_in_an_earlier_micro_batch_of_the_window = can_produce(used_only_earlier)
test_can_produce_a_micro_batch_under_no_sync = can_produce(lambda s: not all(b.synchronize for b in s.microbatches))
test_can_produce_two_micro_batches_under_no_sync = can_produce(
    lambda s: sum(not b.synchronize for b in s.microbatches) == 2
)
test_can_produce_a_window_dropped_halfway = can_produce(
    lambda s: any(not b.synchronize and e == ZeroGrad() for b, e in pairwise(s.program) if isinstance(b, Backward))
)
test_can_produce_a_window_set_to_zero_halfway = can_produce(
    lambda s: any(not b.synchronize and e == ZeroGrad(False) for b, e in pairwise(s.program) if isinstance(b, Backward))
)
test_can_produce_a_window_dropped_on_top_of_an_average = can_produce(
    lambda s: any(
        isinstance(first, Finish) and isinstance(second, Backward) and not second.synchronize and third == ZeroGrad()
        for first, second, third in zip(s.program, s.program[1:], s.program[2:], strict=False)
    )
)
test_can_produce_several_synchronizations = can_produce(lambda s: len(synchronizing(s)) > 2)
test_can_produce_several_steps = can_produce(lambda s: sum(isinstance(e, Step) for e in s.program) > 1)
test_can_produce_gradients_dropped = can_produce(lambda s: ZeroGrad(True) in s.program)
test_can_produce_gradients_zeroed = can_produce(lambda s: ZeroGrad(False) in s.program)
test_can_produce_no_zero_grad_between_synchronizations = can_produce(
    lambda s: len(synchronizing(s)) > 1 and not any(isinstance(e, ZeroGrad) for e in s.program)
)
test_can_produce_the_quadratic_probe_after_a_step = can_produce(
    lambda s: s.probe == "quadratic" and Step() in s.program[:-2]
)
test_can_produce_other_learning_rates = can_produce(lambda s: s.learning_rate == 0.25)
test_can_produce_a_parameter_larger_than_the_cap = can_produce(
    lambda s: s.bucket_cap is not None and any(p.nbytes > s.bucket_cap for p in s.parameters)
)
test_can_produce_a_parameter_with_fewer_elements_than_ranks = can_produce(
    lambda s: any(1 < p.count < s.world_size for p in s.parameters)
)
test_can_produce_sizes_that_are_prime = can_produce(lambda s: {p.count for p in s.parameters} >= {3, 5})
test_can_produce_parameters_of_one_size = can_produce(
    lambda s: len(s.parameters) > 2 and len({p.count for p in s.parameters}) == 1
)
test_can_produce_a_parameter_without_elements = can_produce(lambda s: any(p.count == 0 for p in s.parameters))
test_can_produce_bfloat16 = can_produce(lambda s: any(p.dtype == "bfloat16" for p in s.parameters))
test_can_produce_float16 = can_produce(lambda s: any(p.dtype == "float16" for p in s.parameters))
test_can_produce_16_bits_beside_32 = can_produce(
    lambda s: {p.dtype for p in s.parameters} in ({"bfloat16", "float32"}, {"float16", "float32"})
)
test_can_produce_bfloat16_beside_float16 = can_produce(
    lambda s: {p.dtype for p in s.parameters} == {"bfloat16", "float16"}
)
test_can_produce_contributions_of_both_signs = can_produce(lambda s: s.signs == "mixed")
test_can_produce_training_in_evaluation_mode = can_produce(lambda s: s.mode == "eval")
test_can_produce_negative_contributions_alone = can_produce(lambda s: s.signs == "negative")
test_can_produce_sparse_runs = can_produce(lambda s: s.sparse[1] > 1)


test_can_produce_masters = can_produce(lambda s: s.masters and Step() in s.program, has=("16 bits",))
test_can_produce_a_transposed_parameter = can_produce(lambda s: any(p.layout == "transposed" for p in s.parameters))
test_can_produce_channels_last = can_produce(lambda s: any(p.layout == "channels last" for p in s.parameters))
test_can_produce_two_names_of_one_tensor = can_produce(lambda s: any(p.tied is not None for p in s.parameters))
test_can_produce_one_tensor_under_two_names_in_two_places_of_an_order = can_produce(
    lambda s: (
        s.parameters[-1].tied is not None
        and any({len(s.parameters) - 1, s.parameters[-1].tied} <= set(o) for b in s.microbatches for o in b.orders)
    )
)
test_can_produce_one_tensor_under_two_names_in_two_submodules = can_produce(tied_across_units)
test_can_produce_several_submodules = can_produce(lambda s: len(s.units) > 1)
test_can_produce_a_submodule_that_is_used_twice = can_produce(used_twice)
test_can_produce_a_parameter_of_the_root_beside_submodules = can_produce(
    lambda s: 0 < sum(map(len, s.units)) < len(s.parameters)
)
test_can_produce_a_parameter_read_outside_its_module = can_produce(lambda s: len(s.outside) == 1)
test_can_produce_a_submodule_that_is_read_and_not_called = can_produce(
    lambda s: any(set(unit) == set(s.outside) for unit in s.units)
)
test_can_produce_a_submodule_that_is_called_and_read_outside_too = can_produce(
    lambda s: any(0 < len(set(unit) & set(s.outside)) < len(unit) for unit in s.units)
)
test_can_produce_replicas_that_are_sharded = can_produce(lambda s: 1 < s.replicas < s.world_size)
test_can_produce_replicas_of_one_rank = can_produce(lambda s: 1 < s.replicas == s.world_size)
test_can_produce_a_rank_that_takes_no_part = can_produce(lambda s: s.outsiders == 1)
test_can_produce_more_ranks_that_take_no_part_than_ranks_that_do = can_produce(lambda s: s.outsiders > s.world_size)
test_can_produce_a_whole_world_of_which_one_rank_takes_no_part = can_produce(
    lambda s: s.outsiders > 0 and s.outsiders + s.world_size == MOST_RANKS
)
test_can_produce_buffers = can_produce(lambda s: len(s.buffers) > 1)
test_can_produce_nested_no_sync = can_produce(lambda s: any(b.nested for b in s.microbatches))
test_can_produce_clipping_below_the_norm = can_produce(norm_at(lambda most, norm: most < norm))
test_can_produce_clipping_at_the_norm = can_produce(norm_at(lambda most, norm: most == norm))
test_can_produce_clipping_above_the_norm = can_produce(norm_at(lambda most, norm: most > norm))
test_can_produce_a_norm_that_is_only_measured = can_produce(has(Clip, max_norm=float("inf")))
test_can_produce_clipping_by_the_1_norm = can_produce(has(Clip, norm_type=1.0))
test_can_produce_clipping_by_the_2_norm = can_produce(has(Clip, norm_type=2.0))
test_can_produce_clipping_by_the_3_norm = can_produce(has(Clip, norm_type=3.0))
test_can_produce_clipping_by_the_largest_element = can_produce(has(Clip, norm_type=float("inf")))
test_can_produce_a_loss_scale_that_grows = can_produce(
    lambda s: s.loss_scale is not None and s.loss_scale.growth_interval == 1 and Step() in s.program
)
test_can_produce_an_overflow_on_one_of_several_ranks = can_produce(
    lambda s: s.world_size > 1 and any(len(b.overflow) == 1 for b in s.microbatches)
)
test_can_produce_clipping_after_an_overflow_and_another_step = can_produce(
    lambda s: any(
        isinstance(event, Clip) and s.overflowed(place) and s.program[place:].count(Step()) > 1
        for place, event in enumerate(s.program)
    ),
    has=("clipped overflow",),
)
test_can_produce_a_step_that_is_skipped_and_one_that_is_not = can_produce(
    lambda s: len({*interpret(s, unused="untouched").loss_scales.values()}) > 1
)
test_can_produce_a_step_skipped_between_two_that_are_not = can_produce(
    skips_a_step_in_the_middle, has=("clipped overflow", "several steps")
)
test_can_produce_momentum = can_produce(lambda s: bool(s.hyperparameters.momentum))
test_can_produce_nesterov = can_produce(lambda s: bool(s.hyperparameters.nesterov))
test_can_produce_weight_decay = can_produce(lambda s: bool(s.hyperparameters.weight_decay))
test_can_produce_adam = can_produce(lambda s: s.optimizer == "Adam" and Step() in s.program)
test_can_produce_adamw = can_produce(lambda s: s.optimizer == "AdamW" and Step() in s.program)
test_can_produce_groups = can_produce(lambda s: len(s.groups) > 1)
test_can_produce_hyperparameters_changed_between_two_steps = can_produce(
    lambda s: any(
        isinstance(event, SetHyperparameters) and Step() in s.program[:place] and Step() in s.program[place:]
        for place, event in enumerate(s.program)
    )
)
test_can_produce_betas_changed_between_two_steps = can_produce(
    lambda s: sets_after_a_step(s, "betas"), has=("adam", "set hyperparameters")
)
test_can_produce_maximize_from_a_later_step_on = can_produce(
    lambda s: sets_after_a_step(s, "maximize"), has=("set hyperparameters",)
)
test_can_produce_a_group_that_is_maximized = can_produce(
    lambda s: any(group.hyperparameters.maximize for group in s.groups), has=("groups",)
)
test_can_produce_a_parameter_frozen_later = can_produce(has(Freeze, frozen=True))
test_can_produce_a_parameter_trained_again = can_produce(has(Freeze, frozen=False))
test_can_produce_a_parameter_trained_that_was_frozen_when_it_was_wrapped = can_produce(
    lambda s: any(not standing.trained <= standing.when_wrapped for standing in s.standings)
)
test_can_produce_a_parameter_frozen_while_there_are_gradients = can_produce(
    lambda s: any(isinstance(one, Step) and isinstance(two, Freeze) for one, two in pairwise(s.program))
)
test_can_produce_a_parameter_replaced = can_produce(has(Replace))
test_can_produce_an_evaluation = can_produce(has(Evaluate))
test_can_produce_an_evaluation_in_inference_mode = can_produce(has(Evaluate, inference=True))
test_can_produce_an_evaluation_in_the_mode_of_training = can_produce(has(Evaluate, switch=False, synchronize=True))
test_can_produce_an_evaluation_inside_no_sync = can_produce(has(Evaluate, switch=True, synchronize=False))
test_can_produce_an_evaluation_in_the_mode_of_training_inside_no_sync = can_produce(
    has(Evaluate, switch=False, synchronize=False)
)
test_can_produce_a_loss_that_is_dropped_inside_no_sync = can_produce(has(DropLoss, synchronize=False))
test_can_produce_a_loss_that_is_dropped_beside_an_evaluation = can_produce(
    lambda s: s.has(DropLoss) and s.has(Evaluate)
)
test_can_produce_a_model_that_moves_and_whose_gradients_are_copied = can_produce(
    lambda s: s.has(Move) and s.has(CopyGradients), has=("copy gradients",)
)
test_can_produce_gradients_that_are_copied_inside_no_sync = can_produce(
    lambda s: any(s.standings[place].local for place in s.places(CopyGradients)), has=("copy gradients",)
)
test_can_produce_weights_that_are_swapped_right_after_a_step = can_produce(
    lambda s: any(isinstance(one, Step) and isinstance(two, SwapWeights) for one, two in pairwise(s.program)),
    has=("swap weights",),
)
test_can_produce_a_copy_of_a_model_that_is_frozen_later = can_produce(
    in_order(Duplicate, Freeze, Backward), has=("duplicate",)
)
test_can_produce_what_the_last_rank_does_alone = can_produce(
    lambda s: has(ActAlone, rank=s.world_size - 1)(s) and s.world_size > 2, has=("act alone",)
)
test_can_produce_everything_saved = can_produce(has(SaveAndLoad, optimizer=True))
test_can_produce_weights_saved_alone = can_produce(has(SaveAndLoad, optimizer=False))
test_can_produce_everything_loaded_into_what_has_trained_since = can_produce(in_order(Save, Step, Load, Backward))
test_can_produce_weights_loaded_alone_into_what_is_there = can_produce(has(Load, optimizer=False))
test_can_produce_two_loads_of_what_was_saved_once = can_produce(
    in_order(Save, Step, Load, Step, Load), has=("go back",)
)
test_can_produce_an_error_inside_no_sync = can_produce(has(Raise, where="no_sync"))
test_can_produce_an_error_inside_a_nested_no_sync_of_which_the_outer_goes_on = can_produce(
    lambda s: any(
        isinstance(event, Raise) and event.nested and s.stays_in_no_sync(place) for place, event in enumerate(s.program)
    )
)
test_can_produce_an_error_in_forward = can_produce(has(Raise, where="forward", synchronize=True))
test_can_produce_an_error_in_forward_inside_no_sync = can_produce(has(Raise, where="forward", synchronize=False))
test_can_produce_an_error_in_backward = can_produce(has(Raise, where="backward"))
test_can_produce_an_error_in_a_module = can_produce(has(Raise, where="module"))
test_can_produce_an_error_in_a_hook = can_produce(has(Raise, where="hook"))
test_can_produce_an_error_in_an_evaluation = can_produce(has(Raise, where="evaluation"))
test_can_produce_an_error_on_one_rank = can_produce(lambda s: has(Raise, rank=s.world_size - 1)(s) and s.world_size > 1)
test_can_produce_an_error_on_a_rank_beyond_the_second = can_produce(
    lambda s: any(has(Raise, rank=r)(s) for r in range(2, 8))
)
test_can_produce_an_error_and_a_step_after_it = can_produce(in_order(Raise, Backward, Step))
test_can_produce_a_parameter_written_between_two_steps = can_produce(
    in_order(Step, Write, Backward, Step), has=("write",)
)
test_can_produce_all_parameters_written = can_produce(
    lambda s: any(isinstance(e, Write) and len(e.parameters) == len(s.tensors) > 1 for e in s.program), has=("write",)
)
test_can_produce_what_is_written_beside_sixteen_bits = can_produce(has(Write), has=("write", "16 bits"))
test_can_produce_a_step_of_one_optimizer_of_several = can_produce(
    lambda s: any(e.groups is not None and len(e.groups) < len(s.optimizers) for e in s.program if isinstance(e, Step)),
    has=("several optimizers",),
)
test_can_produce_steps_of_one_optimizer_after_the_other = can_produce(
    lambda s: any(
        isinstance(one, Step) and isinstance(two, Step) and len(s.optimizers) > 1 for one, two in pairwise(s.program)
    ),
    has=("several optimizers",),
)
test_can_produce_several_optimizers_that_are_saved_and_loaded = can_produce(
    lambda s: s.has(SaveAndLoad) and len(s.optimizers) > 1, has=("several optimizers", "go on")
)
test_can_produce_four_steps = can_produce(lambda s: s.program.count(Step()) == 4)

test_can_produce_a_rank_without_any_micro_batch = can_produce_where_ranks_run_out(
    lambda s: any(isinstance(first, Join) and s.gone(place) for place, first in enumerate(s.program[:-1], 1))
)
test_can_produce_a_rank_that_runs_out_after_some_micro_batches = can_produce_where_ranks_run_out(
    lambda s: any(set(then.gone) - set(first.gone) and then.gone for first, then in pairwise(s.microbatches))
)
test_can_produce_ranks_that_run_out_one_after_the_other = can_produce_where_ranks_run_out(
    lambda s: any(first.gone and set(then.gone) - set(first.gone) for first, then in pairwise(s.microbatches))
)
test_can_produce_one_rank_that_is_left_of_many = can_produce_where_ranks_run_out(
    lambda s: any(s.world_size > 2 and len(batch.gone) == s.world_size - 1 for batch in s.microbatches)
)
test_can_produce_rank_0_as_the_first_to_run_out = can_produce_where_ranks_run_out(
    lambda s: any(batch.gone == (0,) and s.world_size > 2 for batch in s.microbatches)
)
test_can_produce_a_rank_that_runs_out_inside_no_sync = can_produce_where_ranks_run_out(
    lambda s: any(not one.synchronize and set(two.gone) - set(one.gone) for one, two in pairwise(s.microbatches))
)
test_can_produce_a_micro_batch_inside_no_sync_without_all_ranks = can_produce_where_ranks_run_out(
    lambda s: any(batch.gone and not batch.synchronize for batch in s.microbatches)
)
test_can_produce_a_mean_over_the_remaining_ranks = can_produce_where_ranks_run_out(has(Join, divide_by=DIVISORS[1]))
test_can_produce_a_step_without_all_ranks = can_produce_where_ranks_run_out(
    lambda s: any(isinstance(event, Step) and s.gone(place) for place, event in enumerate(s.program))
)
test_can_produce_a_micro_batch_of_all_after_ranks_ran_out = can_produce_where_ranks_run_out(
    lambda s: bool(s.microbatches) and isinstance(s.program[-2], Backward) and not s.microbatches[-1].gone
)
test_can_produce_other_ranks_that_run_out_first_in_a_second_window = can_produce_where_ranks_run_out_twice(
    lambda s: len({first_gone(window) for window in windows(s)} - {()}) > 1
)
test_can_produce_two_windows_that_divide_otherwise = can_produce_where_ranks_run_out_twice(
    lambda s: {event.divide_by for event in s.program if isinstance(event, Join)} == set(DIVISORS)
)
test_can_produce_a_second_window_right_after_the_first = can_produce_where_ranks_run_out_twice(
    lambda s: any((type(one), type(other)) == (EndJoin, Join) for one, other in pairwise(s.program))
)


def test_permutations_are_all_there_and_the_first_is_the_identity() -> None:
    items = (3, 5, 7, 8)
    assert permutation(items, 0) == items
    assert permutation(items, 1) == (3, 5, 8, 7)
    assert len({permutation(items, number) for number in range(24)}) == 24
    assert all(permutation(items, number + 24) == permutation(items, number) for number in range(24))
    assert all(sorted(permutation(items, number)) == list(items) for number in range(24))
