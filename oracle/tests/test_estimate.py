"""Answers about a training step: published figures, and agreement with the formulas and simulations they rest on."""

from dataclasses import replace
from fractions import Fraction

import pytest

from lockstep.oracle import estimate
from lockstep.oracle.cost import collective_time, hierarchical_time, moved
from lockstep.oracle.estimate import Question
from lockstep.oracle.language_models import MODELS, activations
from lockstep.oracle.overlap import timeline

BILLION = 10**9
SEVEN = Question((75 * BILLION // 10,), 64)


@pytest.mark.parametrize(
    ("name", "published"),
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200)],
)
def test_a_model_has_as_many_parameters_as_its_checkpoint(name, published):
    assert sum(count for _, count in MODELS[name].tensors()) == published


def test_bytes_held_by_stage_are_those_of_the_paper():
    gigabytes = [round(float(sum(estimate.bytes_held(SEVEN, stage).values()) / BILLION), 1) for stage in range(4)]
    assert gigabytes == [120, 31.4, 16.6, 1.9]
    assert estimate.bytes_held(SEVEN, 0) == {
        "parameters": 15 * BILLION,
        "gradients": 15 * BILLION,
        "optimizer": 90 * BILLION,
    }


def test_activations_are_those_of_the_formula_and_of_one_micro_batch():
    """GPT-3 of 175 B, s 2048, b 1, h 12288, a 96: 34 + 5 a s / h = 34 + 80 per element."""
    block = replace(MODELS["gpt2"], blocks=1, hidden=12288, heads=96)
    assert activations(block, 1, 2048) == 2048 * 12288 * (34 + 80)
    assert activations(block, 1, 2048, "attention") == 2048 * 12288 * 34
    assert activations(block, 1, 2048, "all") == 2048 * 12288 * 2
    with pytest.raises(ValueError, match="recomputed 'some'"):
        activations(block, 1, 2048, "some")


@pytest.mark.parametrize("stage", range(4))
def test_volumes_add_up_to_the_elements_that_are_moved(stage):
    asked = Question((600, 1000), 8, layers=2)
    sent = sum(volume.bytes for volume in estimate.volumes(asked, stage))
    assert sent == 2 * moved(stage, 1600, 8)
    assert estimate.elements_moved(asked, stage) == moved(stage, 1600, 8) / 1600


def test_gradients_of_7_billion_parameters_take_187_milliseconds_at_150_gigabytes_per_second():
    asked = Question((7 * BILLION,), 4096, alpha=Fraction(0))
    (volume,) = estimate.volumes(asked, 0)
    assert round(volume.bytes / BILLION) == 28
    assert round(1000 * estimate.all_reduces(asked)["one ring"]) == 187


def test_4_mi_tokens_are_4_micro_batches_on_128_ranks_and_do_not_fit_1024():
    asked = Question((1,), 128, micro_batch=2, sequence=4096, batch=1024)
    assert "4,194,304 tokens: 4 micro-batches of 2" in estimate.accumulation(asked)
    assert "1 micro-batches" in estimate.accumulation(replace(asked, ranks=512))
    told = estimate.accumulation(replace(asked, ranks=1024))
    assert "use 512 ranks or a batch of 2048 or a micro-batch of 1" in told


def test_the_best_cap_of_a_sweep_is_no_worse_than_25_mib():
    asked = Question((7 * BILLION // 224,) * 224, 64)
    steps, best = estimate.sweep(asked)
    assert {asked.cap, best} <= steps.keys()
    assert steps[best] == min(steps.values())
    assert steps[best] <= steps[25 * 2**20]
    assert estimate.step(asked).step == steps[25 * 2**20]


def test_efficiency_falls_with_ranks_from_1():
    told = estimate.scaling(Question((10**6,) * 50), estimate.powers(48))
    assert [*told] == [1, 2, 4, 8, 16, 32, 48]
    assert told[1] == 1
    assert list(told.values()) == sorted(told.values(), reverse=True)


def test_efficiency_falls_at_the_edge_of_a_node():
    asked = Question((10**6,) * 50, 12, node=6)
    told = estimate.scaling(asked, estimate.powers(12))
    assert [*told] == [1, 2, 4, 12]  # 8 ranks are no whole nodes
    assert told[4] == estimate.scaling(replace(asked, node=0), [4])[4]
    assert told[12] == estimate.step(asked).efficiency < estimate.step(replace(asked, node=0)).efficiency


def test_nodes_joined_by_slow_links_do_better_in_two_levels():
    asked = Question((10**9,), 64, node=8)
    told = estimate.all_reduces(asked)
    assert told["hierarchical"] < told["one ring"]
    assert hierarchical_time(80, 4, 1, (1, 8), (1, 8)) == collective_time("all_reduce", 80, 4, 1, 8)
    assert hierarchical_time(80, 1, 4, (1, 8), (1, 8)) == collective_time("all_reduce", 80, 4, 1, 8)
    assert [*estimate.all_reduces(replace(asked, node=0))] == ["one ring"]


def test_prefetching_gathers_hides_them_and_no_step_is_shorter_than_computing():
    asked = Question((8 * 10**8,), 8, layers=8)
    steps = [estimate.prefetched(asked, depth).step for depth in range(3)]
    assert steps[0] > steps[1] >= steps[2] >= estimate.prefetched(asked, 0).computation
    assert len(estimate.prefetched(asked, 1).travels) == 3 * 8


def test_prefetching_everything_at_once_is_the_timeline_of_its_scatters():
    asked = Question((8 * 10**8,), 8, layers=8, alpha=Fraction(0), bandwidth=Fraction(10**15))
    forward, backward, optimizer = asked.seconds
    size = asked.parameters * 2 // 8
    line = timeline(
        forward, [backward / 8] * 8, optimizer, [size] * 8, 0, lambda each: asked.travel("reduce_scatter", each)
    )
    first = asked.travel("all_gather", size)  # nothing hides it
    assert estimate.prefetched(asked, 16).step == line.step + first


def test_bad_questions_are_refused_in_words():
    with pytest.raises(ValueError, match="at least one tensor"):
        Question(())
    with pytest.raises(ValueError, match="6 ranks are not whole nodes of 4"):
        Question((1,), 6, node=4)
