"""ZeRO as a state machine, against closed formulas and figures worked out by hand."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.cost import gathers, memory, moved, sent
from lockstep.oracle.recipes import recipe
from lockstep.oracle.shards import by_layer, chunked, flat, greedy
from lockstep.oracle.tests.examples import examples
from lockstep.oracle.zero import Plan, messages, peak, replica_groups, shard_groups, training_step

RECIPES = [
    *(recipe("bfloat16", name, fp32) for name in ("sgd", "momentum", "adam") for fp32 in (False, True)),
    *(recipe(compute, name) for compute in ("float32", "float64") for name in ("sgd", "momentum", "adam")),
]


@st.composite
def plans(draw, divisible):
    """Any plan; where ``divisible``, the shard group divides every layer, so that nothing is padded."""
    shards, stage = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    cut = draw(st.sampled_from([flat, chunked]))
    layers = tuple(
        cut({f"{i}.w": (size * (shards if divisible else 1), 2), f"{i}.b": (shards if divisible else 1,)}, shards)
        for i, size in enumerate(sizes)
    )
    all_reduce = stage == 1 and draw(st.booleans())
    return Plan(
        layers,
        stage,
        draw(st.sampled_from(RECIPES)),
        replicas=draw(st.integers(1, 3)) if stage and not all_reduce else 1,
        micro_batches=draw(st.integers(1, 3)),
        synchronize_each=draw(st.booleans()),
        keep_last=draw(st.integers(0, len(sizes))) if stage == 3 else 0,
        prefetch=draw(st.integers(0, 2)) if stage == 3 else 0,
        all_reduce_gradients=all_reduce,
    )


def elements(plan):
    return sum(layer.elements for layer in plan.layers)


def ten_by(shards, count=3):
    return tuple(flat({f"{i}": (10 * shards,)}, shards) for i in range(count))


@examples(100)
@given(plans(divisible=True))
def test_what_is_held_at_the_update_is_the_table_of_the_paper(plan):
    (update,) = [now for now in training_step(plan) if now.event == "update"]
    expected = memory(plan.stage, elements(plan), plan.shards, plan.recipe)
    assert [held.total for held in update.held] == [expected] * plan.world_size


@examples(100)
@given(plans(divisible=True))
def test_what_is_sent_is_the_formula_of_the_paper(plan):
    kept = sum(layer.elements for layer in plan.layers[len(plan.layers) - plan.keep_last :])
    synchronizations = plan.micro_batches if plan.synchronize_each else 1
    expected = moved(
        plan.stage,
        elements(plan),
        plan.shards,
        plan.replicas,
        plan.micro_batches,
        synchronizations,
        kept,
        plan.all_reduce_gradients,
    )
    assert [sent(messages(plan), rank)[0] for rank in range(plan.world_size)] == [expected] * plan.world_size


@examples(100)
@given(plans(divisible=False))
def test_a_step_ends_as_it_began_and_never_holds_less(plan):
    first, *_, last = moments = list(training_step(plan))
    assert (first.event, last.event) == ("rest", "zero_grad")
    assert first.held == last.held
    for rank in range(plan.world_size):
        assert all(now.held[rank].total >= first.held[rank].total for now in moments)
    assert peak(plan) == tuple(max(now.held[rank].total for now in moments) for rank in range(plan.world_size))


@examples(100)
@given(plans(divisible=False))
def test_every_layer_is_whole_while_it_computes_and_owned_or_whole_gradients_remain(plan):
    for now in training_step(plan):
        if now.event in ("forward", "backward") and plan.stage == 3:
            least = plan.recipe.parameter * sum(plan.layers[now.layer].padded)
            assert all(held.gathered >= least for held in now.held)
        if now.event == "update":
            for rank, held in enumerate(now.held):
                own = rank % plan.shards
                each = [layer.padded[own] if plan.stage > 1 else layer.elements for layer in plan.layers]
                assert held.gradients == plan.recipe.gradient * sum(each)
                assert (held.gathered, held.buffers, held.activations) == (0, 0, 0)


@examples(100)
@given(plans(divisible=False))
def test_all_ranks_of_a_group_take_part_in_every_collective_also_those_that_own_nothing(plan):
    groups = set(shard_groups(plan)) | set(replica_groups(plan)) | {tuple(range(plan.world_size))}
    assert all(message.group in groups for message in messages(plan))
    seen = [Counter(message for message in messages(plan) if rank in message.group) for rank in range(plan.world_size)]
    assert len({sum(counter.values()) for counter in seen}) == 1


@pytest.mark.parametrize("layers", [1, 2, 5, 32])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_stage_3_gathers_each_layer_twice_less_those_it_keeps(layers, prefetch):
    for keep in {0, 1, layers}:
        plan = Plan(ten_by(4, layers), 3, RECIPES[0], keep_last=keep, prefetch=prefetch)
        count = sum(message.collective == "all_gather" for message in messages(plan))
        assert count == gathers(layers, keep) == 2 * layers - keep


def test_prefetching_holds_the_layer_that_computes_and_those_after_it():
    for prefetch, expected in ((0, [1, 1, 1, 1, 1, 1]), (1, [2, 2, 1, 2, 2, 1]), (5, [3, 2, 1, 3, 2, 1])):
        plan = Plan(ten_by(2), 3, recipe("bfloat16", "adam"), prefetch=prefetch)
        computing = [now for now in training_step(plan) if now.event in ("forward", "backward")]
        assert [now.held[0].gathered // 40 for now in computing] == expected


def test_the_events_of_one_stage_3_layer_in_order():
    plan = Plan(ten_by(2, 1), 3, recipe("bfloat16", "adam"))
    assert [
        (now.event, now.held[0].gathered, now.held[0].gradients, now.held[0].buffers) for now in training_step(plan)
    ] == [
        ("rest", 0, 0, 0),
        ("all_gather", 40, 0, 0),
        ("forward", 40, 0, 0),
        ("discard", 0, 0, 0),
        ("all_gather", 40, 0, 0),
        ("backward", 40, 40, 0),
        ("discard", 0, 40, 0),
        ("reduce_scatter", 0, 40, 40),
        ("free_gradient", 0, 20, 0),
        ("update", 0, 20, 0),
        ("zero_grad", 0, 0, 0),
    ]


def test_the_peak_of_a_stage_3_step_worked_out_by_hand():
    """Shards of all layers, gradients of the layers done, and the last backward: one layer, its gradient, its buffer.

    3 layers of 20 elements on 2 ranks, fp32 SGD (4 + 4 bytes): 120 parameters; when the first layer runs backward, 80
    of gradient shards, 80 gathered, 80 whole gradient; when it is reduced, 80 of buffer instead of the layer.
    """
    assert peak(Plan(ten_by(2), 3, recipe("float32", "sgd"))) == (360, 360)
    assert peak(Plan(ten_by(2), 3, recipe("float32", "sgd"), prefetch=1)) == (400, 400)
    assert peak(Plan(ten_by(2), 3, recipe("float32", "sgd"), keep_last=3)) == (440, 440)


def test_activations_of_one_micro_batch_are_held_however_many_there_are():
    for count in (1, 2, 8):
        plan = Plan(ten_by(2), 0, RECIPES[0], micro_batches=count, activations=(5, 6, 7))
        held = [now.held[0].activations for now in training_step(plan) if now.event in ("forward", "backward")]
        assert held == [5, 11, 18, 18, 11, 5] * count


@pytest.mark.parametrize("stage", [2, 3])
def test_fp32_gradients_of_a_sharded_layer_are_kept_for_its_slice_only(stage):
    """2 ranks, 3 layers of 20: a whole 16-bit gradient is there while reduced, its fp32 copy as a slice."""
    precision = recipe("bfloat16", "adam", fp32_gradients=True)
    moments = list(training_step(Plan(ten_by(2), stage, precision)))
    held = [(now.held[0].gradients, now.held[0].fp32_gradients) for now in moments if now.event == "backward"]
    assert held == [(40, 0), (60, 40), (80, 80)]
    (buffer,) = {now.held[0].buffers for now in moments if now.event == "reduce_scatter"}
    assert buffer == 80
    once = Plan(ten_by(2), stage, precision, micro_batches=2, synchronize_each=False)
    held = [
        (now.held[0].gradients, now.held[0].fp32_gradients) for now in training_step(once) if now.event == "backward"
    ]
    assert held == [(40, 80), (80, 160), (120, 240), (120, 240), (100, 200), (80, 160)]


def test_without_synchronizing_each_micro_batch_stage_2_holds_whole_gradients():
    """no_sync trades memory for communication: the whole gradient instead of 1/N of it, one reduce-scatter for k."""
    each, once = (
        Plan(ten_by(4), 2, recipe("float32", "adam"), micro_batches=3, synchronize_each=choice)
        for choice in (True, False)
    )
    whole = elements(each) * 4
    held = [max(now.held[0].gradients for now in training_step(plan)) for plan in (each, once)]
    assert held == [whole // 4 + whole // 3, whole]
    assert [sent(messages(plan), 0)[0] for plan in (each, once)] == [360, 180]


def test_hybrid_sharding_holds_what_its_shard_group_implies_and_reduces_slices_across_replicas():
    plan = Plan(ten_by(2, 1), 3, recipe("bfloat16", "adam"), replicas=3)
    alone = Plan(ten_by(2, 1), 3, recipe("bfloat16", "adam"))
    assert peak(plan) == peak(alone) * 3
    assert shard_groups(plan) == ((0, 1), (2, 3), (4, 5))
    assert replica_groups(plan) == ((0, 2, 4), (1, 3, 5))
    counts = Counter((message.collective, message.group, message.elements) for message in messages(plan))
    assert counts == {
        **{("all_gather", group, 20): 2 for group in shard_groups(plan)},
        **{("reduce_scatter", group, 20): 1 for group in shard_groups(plan)},
        **{("all_reduce", group, 10): 1 for group in replica_groups(plan)},
    }


def test_replicas_hold_the_same_shards_however_uneven():
    plan = Plan((greedy([{"a": (5,), "b": (3,), "c": (1,)}], 3),), 3, recipe("float32", "adam"), replicas=2)
    (update,) = [now for now in training_step(plan) if now.event == "update"]
    assert [held.optimizer_state for held in update.held] == [40, 24, 8, 40, 24, 8]
    across = [message for message in messages(plan) if message.collective == "all_reduce"]
    assert [(message.group, message.elements) for message in across] == [((0, 3), 5), ((1, 4), 3), ((2, 5), 1)]


def test_padding_is_held_and_sent_and_empty_shards_hold_nothing():
    """5 rows of 3 on 4 ranks: 2, 2, 1, 0 rows, all padded to 2 in parameters and gradients, not in optimizer state."""
    plan = Plan((chunked({"w": (5, 3)}, 4),), 3, recipe("bfloat16", "adam"))
    (update,) = [now for now in training_step(plan) if now.event == "update"]
    assert [held.parameters for held in update.held] == [12, 12, 12, 12]
    assert [held.optimizer_state for held in update.held] == [48, 48, 24, 0]
    assert {message.elements for message in messages(plan)} == {24}
    whole = Plan((greedy([{"w": (5, 3)}], 4),), 1, recipe("bfloat16", "adam"))
    assert [now.held[1].master_weights for now in training_step(whole)] == [0, 0, 0, 0, 0, 0, 0]
    one_slice = by_layer(flat({"a": (3,), "b": (4,)}, 2), [["a"], ["b"]])
    assert {message.elements for message in messages(Plan(tuple(one_slice), 2, RECIPES[0]))} == {3, 5}


@pytest.mark.parametrize(
    ("precision", "total", "optimizer", "wire"),
    [
        (recipe("bfloat16", "adam"), 16, 12, 2),
        (recipe("float16", "adam"), 16, 12, 2),
        (recipe("bfloat16", "adam", fp32_gradients=True), 20, 12, 4),
        (recipe("bfloat16", "momentum"), 12, 8, 2),
        (recipe("bfloat16", "sgd"), 8, 4, 2),
        (recipe("float32", "adam"), 16, 8, 4),
        (recipe("float32", "momentum"), 12, 4, 4),
        (recipe("float32", "sgd"), 8, 0, 4),
        (recipe("float64", "adam"), 32, 16, 8),
    ],
)
def test_bytes_per_parameter_in_every_recipe(precision, total, optimizer, wire):
    assert memory(0, 1, 1, precision) == total
    assert (precision.optimizer, precision.wire) == (optimizer, wire)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stage": 4}, "stage 4"),
        ({"layers": ()}, "at least one layer"),
        ({"layers": (flat({"a": (1,)}, 2), flat({"b": (1,)}, 3))}, r"cut over \[2, 3\] ranks"),
        ({"micro_batches": 0}, "micro_batches 0"),
        ({"keep_last": 4}, "keep_last 4 of 3 layers"),
        ({"stage": 2, "keep_last": 1}, "only stage 3 gathers"),
        ({"stage": 0, "replicas": 2}, "2 replicas at stage 0"),
        ({"all_reduce_gradients": True}, "a choice of stage 1"),
        ({"activations": (1,)}, "1 activation sizes for 3 layers"),
    ],
)
def test_plans_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Plan(**{"layers": ten_by(2), "stage": 3, "recipe": RECIPES[0], **change})


def test_unknown_recipes_are_refused():
    with pytest.raises(ValueError, match="compute format 'fp8'"):
        recipe("fp8", "adam")
    with pytest.raises(ValueError, match="optimizer 'lion'"):
        recipe("float32", "lion")
    with pytest.raises(ValueError, match="fp32 gradients beside float32"):
        recipe("float32", "adam", fp32_gradients=True)
