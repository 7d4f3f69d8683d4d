"""Few variants of kernels, where each is compiled: every pair is among them, and nothing else is drawn."""

from itertools import combinations

import pytest

from lockstep.properties.kernels import ahead, runner, variants
from lockstep.properties.strategies.independent import sample

WHOLE = {
    variants.FEW: (variants.MIXES, variants.NUMBERS, variants.DIVISORS, (False, True)),
    variants.FEW_STEPS: (variants.NUMBERS, variants.NUMBERS, range(variants.SETTINGS), (False, True)),
}


@pytest.mark.parametrize("few", WHOLE, ids=["lists", "steps"])
def test_every_pair_of_values_is_in_some_variant(few) -> None:
    values = WHOLE[few]
    rows = [tuple(vars(variant).values()) for variant in few]
    for one, other in combinations(range(len(values)), 2):
        wanted = {(a, b) for a in values[one] for b in values[other]}
        assert {(row[one], row[other]) for row in rows} == wanted, (one, other)


def test_where_kernels_are_compiled_few_variants_are_drawn_and_all_of_them() -> None:
    assert set(sample(variants.variants(few=True), 300)) == set(variants.FEW)
    assert set(sample(variants.step_variants(few=True), 300)) == set(variants.FEW_STEPS)
    assert len(set(sample(variants.step_variants(few=False), 300))) > len(variants.FEW_STEPS)


def test_cuts_of_few_alignments_are_near_multiples_of_16() -> None:
    drawn = {cut % 16 for cuts in sample(variants.cuts(4096, few=True), 100) for cut in cuts}
    assert drawn == {0, 1}
    assert len({cut % 16 for cuts in sample(variants.cuts(4096, few=False), 100) for cut in cuts}) > 8


def test_what_is_compiled_ahead_runs() -> None:
    """Every seventh task here; all of them are run by `python -m lockstep.properties.kernels.ahead`."""
    places = range(0, len(list(ahead.tasks())), 7)
    assert ahead.run(ahead.SHIPPED, places) == len(places)


def test_a_kernel_that_fails_ahead_is_left_to_the_laws() -> None:
    name = "lockstep.impls.faults.kernels_moving:EmptyTensors"
    assert runner.describe(f'"{name}"', 0, 1)["functions"]
    assert ahead.run(name, [0]) == 1
