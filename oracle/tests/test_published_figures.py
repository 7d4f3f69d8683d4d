"""Every published figure comes out of the oracle, each with its source; and no popular claim that is wrong does."""

from fractions import Fraction

import numpy as np
import pytest

from lockstep.oracle.batches import accumulation_steps, global_batch, offers, samples
from lockstep.oracle.collectives import reduction
from lockstep.oracle.cost import collective_time, gathers, gibibytes, memory, moved, sent
from lockstep.oracle.overlap import all_reduce_calls, timeline
from lockstep.oracle.recipes import recipe
from lockstep.oracle.ring import carry_out, cut, reduce_scatter_schedule, ring_all_reduce
from lockstep.oracle.rounding import round_to_nearest, rounded_reciprocal
from lockstep.oracle.shards import flat, squared_norm, to_shards
from lockstep.oracle.zero import Plan, messages, training_step

ADAM = recipe("bfloat16", "adam")
ADAM_FP32_GRADIENTS = recipe("bfloat16", "adam", fp32_gradients=True)
BILLION = 10**9
ZERO = "Rajbhandari et al., ZeRO, 2020"
ARITHMETIC = "by definition"


def per_parameter(stage, shards=64, precision=ADAM):
    return memory(stage, 1, shards, precision)


def gigabytes(stage):
    """10^9 bytes per rank for 7.5 B parameters on 64 ranks, to one decimal."""
    return round(memory(stage, 75 * 10**8, 64, ADAM) / BILLION, 1)


def all_reduce_milliseconds(size, ranks, bandwidth):
    """Without latency, rounded."""
    return round(1000 * collective_time("all_reduce", size, ranks, 0, bandwidth))


def machine(stage, shards, layers=4, **options):
    """(bytes at the update per parameter, elements sent per parameter) from the state machine, not the formulas."""
    cut_layers = tuple(flat({str(layer): (shards,)}, shards) for layer in range(layers))
    plan = Plan(cut_layers, stage, options.pop("precision", ADAM), **options)
    (update,) = [now for now in training_step(plan) if now.event == "update"]
    total = layers * shards
    return Fraction(update.held[0].total, total), sent(messages(plan), 0)[0] / total


FIGURES = [
    # Systems table: what each rank holds
    ("plain data parallelism", per_parameter(0), 16, f"{ZERO}, section 3.1"),
    ("ZeRO-1 on 64 ranks", per_parameter(1), Fraction("4.1875"), f"{ZERO}, figure 1: 4 + 12/64"),
    ("ZeRO-2 on 64 ranks", per_parameter(2), Fraction("2.21875"), f"{ZERO}, figure 1: 2 + 14/64"),
    ("ZeRO-3 on 64 ranks", per_parameter(3), Fraction("0.25"), f"{ZERO}, figure 1: 16/64"),
    ("plain, fp32 gradients as well", per_parameter(0, precision=ADAM_FP32_GRADIENTS), 20, "Megatron's main_grad"),
    ("ZeRO-2, + 4/N", per_parameter(2, precision=ADAM_FP32_GRADIENTS), Fraction("2.28125"), "2 + 18/64"),
    ("k of Adam in mixed precision", ADAM.optimizer, 12, f"{ZERO}, section 3.1"),
    ("7.5 B, plain: 120 GB", gigabytes(0), 120, f"{ZERO}, figure 1"),
    ("7.5 B, ZeRO-1: 31.4 GB", gigabytes(1), Fraction("31.4"), f"{ZERO}, figure 1"),
    ("7.5 B, ZeRO-2: 16.6 GB", gigabytes(2), Fraction("16.6"), f"{ZERO}, figure 1"),
    ("7.5 B, ZeRO-3: 1.9 GB", gigabytes(3), Fraction("1.9"), f"{ZERO}, figure 1"),
    ("70 B in bf16: 140 GB", 70 * BILLION * ADAM.parameter, 140 * BILLION, ARITHMETIC),
    ("70 B in bf16: 130.4 GiB", round(gibibytes(140 * BILLION), 1), Fraction("130.4"), ARITHMETIC),
    # Systems table: what is sent, over (N - 1) / N
    ("plain: 2 Psi", moved(0, 1, 64) / Fraction(63, 64), 2, f"{ZERO}, section 7.1"),
    ("ZeRO-1: 2 Psi", moved(1, 1, 64) / Fraction(63, 64), 2, f"{ZERO}, section 7.2"),
    ("ZeRO-2: 2 Psi", moved(2, 1, 64) / Fraction(63, 64), 2, f"{ZERO}, section 7.2.1"),
    ("ZeRO-3: 3 Psi", moved(3, 1, 64) / Fraction(63, 64), 3, f"{ZERO}, section 7.2.2"),
    ("ZeRO-3, last of 32 layers kept", moved(3, 32, 64, kept=1) / Fraction(63, 64), 3 * 32 - 1, "counting"),
    ("ZeRO-2, 5 micro-batches: (k + 1) Psi", moved(2, 1, 64, 1, 5, 5) / Fraction(63, 64), 6, "counting"),
    ("ZeRO-3, 5 micro-batches: 3 k Psi", moved(3, 1, 64, 1, 5, 5) / Fraction(63, 64), 15, "counting"),
    ("gathers of 32 layers", gathers(32), 64, "2 L"),
    ("gathers of 32 layers, one kept", gathers(32, 1), 63, "2 L - 1"),
    # Batches
    ("4 Mi tokens in sequences of 4,096", samples(4 * 2**20, 4096), 1024, ARITHMETIC),
    ("accumulation on 128 ranks", accumulation_steps(1024, 2, 128), 4, ARITHMETIC),
    ("accumulation on 512 ranks", accumulation_steps(1024, 2, 512), 1, ARITHMETIC),
    ("global batch", global_batch(2, 4, 128), 1024, ARITHMETIC),
    ("fewer ranks", offers(1024, 2, 1024).world_size, 512, ARITHMETIC),
    ("a bigger batch", offers(1024, 2, 1024).global_batch, 2048, ARITHMETIC),
    ("a smaller micro-batch", offers(1024, 2, 1024).micro_batch, 1, ARITHMETIC),
    # Time
    ("7 B bf16 gradients: 28 GB", round(moved(0, 7 * BILLION, 4096) * 2 / BILLION), 28, ARITHMETIC),
    ("28 GB at 150 GB/s: 187 ms", all_reduce_milliseconds(14 * BILLION, 4096, 150 * BILLION), 187, ARITHMETIC),
    ("ring on 8 ranks: 14 alpha", collective_time("all_reduce", 0, 8, 1, 1), 14, "Patarasuk and Yuan, 2009"),
    ("ring on 8 ranks: 7/4 S/B", collective_time("all_reduce", 1, 8, 0, 1), Fraction(7, 4), "Patarasuk and Yuan, 2009"),
]  # fmt: skip


@pytest.mark.parametrize(("figure", "published"), [pytest.param(*row[1:3], id=row[0]) for row in FIGURES])
def test_the_oracle_gives_the_published_figure(figure, published):
    assert figure == published


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_state_machine_gives_the_same_bytes_and_elements_per_parameter(stage):
    bytes_held, elements = machine(stage, 64)
    assert bytes_held == [16, Fraction("4.1875"), Fraction("2.21875"), Fraction("0.25")][stage]
    assert elements == [2, 2, 2, 3][stage] * Fraction(63, 64)


def test_the_state_machine_counts_accumulation_gathers_and_groups_as_published():
    assert machine(2, 8, micro_batches=5)[1] == 6 * Fraction(7, 8)
    assert machine(3, 8, micro_batches=5)[1] == 15 * Fraction(7, 8)
    assert machine(3, 8, layers=32, keep_last=1)[1] == (3 - Fraction(1, 32)) * Fraction(7, 8)
    assert machine(3, 8, replicas=4)[0] == machine(3, 8)[0] == per_parameter(3, 8)


# A published comparison: 2 GPUs, SmolLM2-360M, 2 micro-batches per step.
HIDDEN, INNER, KEYS, VOCABULARY, LAYERS = 960, 2560, 320, 49152, 32
LAYER = [HIDDEN**2, KEYS * HIDDEN, KEYS * HIDDEN, HIDDEN**2, *[INNER * HIDDEN] * 3, HIDDEN, HIDDEN]
FP32_GRADIENTS = [4 * size for size in reversed([VOCABULARY * HIDDEN, *LAYER * LAYERS, HIDDEN])]
CAP = 25 * 2**20


def test_calls_of_a_published_comparison_are_the_calls_for_gradients_and_one_more():
    """582 naive over 2 synchronizations, 291 with one, 44 in buckets of 25 MiB; 90.5 for DDP lies between."""
    assert len(FP32_GRADIENTS) == 290
    assert 2 * (all_reduce_calls(FP32_GRADIENTS, 1) + 1) == 582
    assert all_reduce_calls(FP32_GRADIENTS, 1) + 1 == 291
    assert all_reduce_calls(FP32_GRADIENTS, 1, CAP) + 1 == 44
    assert 44 < all_reduce_calls(FP32_GRADIENTS, 2, CAP) < 90.5 < 291


def test_overlap_of_a_published_comparison_has_its_pattern():
    """Measured: 0 % naive, with accumulation and with blocking hooks; 0.07 % async hooks; 9.6 % buckets; 57 % DDP.

    The pattern, for a latency that outweighs bandwidth: none without overlap, little for 290 calls, more for buckets.
    """
    backward = [Fraction(size, 10**10) for size in FP32_GRADIENTS]

    def overlap(cap, overlapped):
        return timeline(
            0, backward, 0, FP32_GRADIENTS, cap, lambda size: Fraction(1, 100) + Fraction(size, 10**10), overlapped
        ).overlap

    assert overlap(0, False) == overlap(CAP, False) == 0
    assert 0 < overlap(0, True) < overlap(CAP, True) < 1


def test_compute_share_of_a_published_comparison_has_its_pattern():
    """Measured: 67 % naive, 82 % with accumulation, 80 to 82 % by hooks. Half the communication of 67 % gives 80 %."""

    def share(count):
        return timeline(0, [Fraction(134, count)] * count, 0, [1] * count, 0, lambda size: 33, False).efficiency

    assert round(100 * share(2)) == 67
    assert round(100 * share(1)) == 80


# Claims in popular texts that are wrong


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_after_phase_one_of_the_ring_rank_r_owns_chunk_r_plus_1_and_not_chunk_r(ranks):
    data = [np.arange(1.0, ranks + 1) * 3**rank for rank in range(ranks)]
    total = sum(data)
    held = [cut(array, [1] * ranks) for array in data]
    carry_out(reduce_scatter_schedule([1] * ranks), held, "sum")
    for rank in range(ranks):
        complete = [chunk for chunk in range(ranks) if held[rank][chunk][0] == total[chunk]]
        assert complete == [(rank + 1) % ranks]
    assert all((result == total).all() for result in ring_all_reduce(data).results)


def test_70_billion_parameters_in_bf16_are_not_133_gibibytes():
    assert round(gibibytes(70 * BILLION * ADAM.parameter)) == 130


def test_averaging_by_the_rounded_reciprocal_is_not_summing_and_dividing():
    """NCCL's average multiplies by RN(1/N) before the sum; in float32 and N = 7 that misses 21 / 7 = 3."""
    assert round_to_nearest(21 * rounded_reciprocal(7, "float32"), "float32") > 3
    assert reduction([np.full(1, 21, np.float32)] * 7, "average")[0] == 21
    assert rounded_reciprocal(3, "bfloat16") * 3 != 1


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_accumulation_holds_the_activations_of_one_backward_and_not_of_k(stage):
    layers = tuple(flat({str(layer): (8,)}, 2) for layer in range(3))
    held = {
        count: max(
            now.held[0].activations
            for now in training_step(Plan(layers, stage, ADAM, micro_batches=count, activations=(7, 8, 9)))
        )
        for count in (1, 2, 6)
    }
    assert held == {1: 24, 2: 24, 6: 24}


def test_squared_norms_add_over_shards_and_not_over_replicas():
    gradients = [{"p": np.array([1.0, 2.0, 3.0])}, {"p": np.array([5.0, -2.0, 1.0])}]
    average = {"p": (gradients[0]["p"] + gradients[1]["p"]) / 2}
    layout = flat({"p": (3,)}, 2)
    right = squared_norm(to_shards(layout, average))
    local = [squared_norm([gradient["p"]]) for gradient in gradients]
    assert right == 13
    assert right not in (sum(local), sum(local) / 2, 2 * right)


def test_a_step_is_longer_than_forward_the_longer_of_backward_and_communication_and_optimizer():
    line = timeline(10, [3, 3, 3], 2, [8, 8, 8], 8, lambda size: 2)
    claimed = line.forward + max(line.backward, line.communication) + line.optimizer
    assert (line.step, claimed) == (23, 21)
