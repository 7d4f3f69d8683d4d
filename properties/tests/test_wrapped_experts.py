"""Parameters that belong to some ranks: what is taken for a wrapper of them, what is drawn, and what is expected."""

import re
from dataclasses import replace
from fractions import Fraction
from math import isclose, sqrt
from typing import Any

import pytest

import lockstep
from lockstep.oracle.experts import EXPERT_DIVISORS
from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import Claims
from lockstep.properties.experts import draws
from lockstep.properties.experts.expected import RATE, begin, expected
from lockstep.properties.experts.mixture import Mixture
from lockstep.properties.implementations import CORRECT, Unusable, as_found, look_up, try_out
from lockstep.properties.law import concerns
from lockstep.properties.searching.search import search
from lockstep.properties.strategies.independent import sample
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.tests.user_experts import Forgets
from lockstep.worlds.contract import World

USER = "lockstep.properties.tests.user_experts"
TWO_MESHES = "lockstep.impls.frameworks.fsdp2_experts"
TAKEN = "taken for a wrapper of dense parameters and experts"
FOUND = {
    "lockstep.impls.experts:MeanOverGroup": f"{TAKEN}; an expert's gradient is divided by the number of the ranks that "
    "have it; it clips the norm; it saves the experts of all ranks",
    f"{USER}:Hooked": f"{TAKEN}; an expert's gradient is divided by the number of all ranks",
    f"{USER}:makes_one": f"{TAKEN}; an expert's gradient is divided by the number of all ranks",
}
WRONG = {
    "WantsTensorRanks": f"{TAKEN}, for meshes of data x expert ranks alone; making one and a backward raised KeyError",
    "ReturnsNothing": f"{TAKEN}, for meshes of data x expert ranks alone; making one and a backward raised",
}
CLAIMS = Claims(experts=True, unused="zero", clips_experts=True, saves_experts=True)


@pytest.mark.parametrize("name", FOUND)
def test_a_run_says_what_was_taken_for_a_wrapper_of_experts(sim: World, name: str) -> None:
    (found,) = look_up([name], sim)
    try_out([found], sim)
    assert as_found(found) == FOUND[name]
    assert {law.number for law in every_law().values() if concerns(law, found.claims)} == {"P21"}


def test_no_other_wrapper_is_taken_for_one(sim: World) -> None:
    assert not any(found.claims.experts for found in look_up([*CORRECT[:4], f"{USER}:Unrelated"], sim))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_beyond_a_mesh_of_data_and_expert_ranks_is_refused_in_one_line(sim: World, name: str) -> None:
    with pytest.raises(Unusable, match=re.escape(WRONG[name])) as refused:
        try_out(look_up([f"{USER}:{name}"], sim), sim)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name", [f"{USER}:Hooked", f"{TWO_MESHES}:FSDP2Experts", f"{TWO_MESHES}:FSDP2ExpertsAsTheyCome"]
)
def test_what_is_right_passes(sim: World, name: str) -> None:
    """Code that declares nothing, and FSDP2 with either divisor."""
    trial = trial_of(name, sim)
    for law in every_law().values():
        if concerns(law, trial.claims):
            assert search(law, trial, 10, seed_value=0).failures == []


def test_a_check_tells_of_the_gradient_that_is_wrong_and_of_no_program(tmp_path: Any) -> None:
    """The plainest program is none that such code can run."""
    wrong = lockstep.check(Forgets, laws="gets_the_claimed_mean", examples=20, seed=1, report=tmp_path)
    (defect,) = wrong.defects
    assert defect.law == "P21 an expert gets the claimed mean over its own ranks"
    assert "the gradient of experts.0 on rank 0 is [17.0]; [8.5] is due" in str(wrong)


def test_what_is_drawn_reaches_every_corner() -> None:
    drawn = sample(draws.mixtures(CLAIMS), 300)
    assert {(each.mesh.data, each.mesh.expert) for each in drawn} == {(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1)}
    held = [(each, step, number) for each in drawn for step in each.steps for number in range(len(each.experts))]
    idle = [
        {rank for rank, other in step if other == number} == set(each.holders(f"experts.{number}", each.mesh))
        for each, step, number in held
        if any(other == number for _, other in step)
    ]
    assert {True, False} == set(idle)  # on all of an expert's ranks, and on some
    assert {each.missing for each in drawn} == {True, False}
    assert not any(each.missing for each in sample(draws.mixtures(replace(CLAIMS, unused=None)), 100))
    assert {mesh for each in sample(draws.saved(CLAIMS), 200) if (mesh := each.loaded) != (each.world_size, 1)}
    assert all(eval(repr(each)) == each for each in drawn)


def test_drawn_norms_are_above_and_below_the_limit() -> None:
    drawn = sample(draws.clipped(CLAIMS), 100)
    norms = [(expected(each, "world")[0].norm, Fraction(2) ** (each.max_norm or 0)) for each in drawn]
    assert any(norm.low > limit for norm, limit in norms)
    assert any(norm.high < limit for norm, limit in norms)


@pytest.mark.parametrize("policy", EXPERT_DIVISORS)
def test_the_expectation_is_that_of_plain_sums(policy: str) -> None:
    """Written out anew, rank by rank, in floating point, which is exact here."""
    for mixture in sample(draws.saved(CLAIMS), 50):
        weights = {name: [float(each) for each in values] for name, values in begin(mixture).items()}
        before, after = mixture.parts()
        meshes = [mixture.mesh] * len(before) + [mixture.later_mesh] * len(after)
        for due, parts, mesh in zip(expected(mixture, policy), [*before, *after], meshes, strict=True):
            for name, values in weights.items():
                ranks = mesh.data if policy == "group" and name.startswith("experts") else mesh.data * mesh.expert
                mean = [sum(each) / ranks for each in zip(*(rank[name] for rank in parts if name in rank), strict=True)]
                weights[name] = [weight - float(RATE) * each for weight, each in zip(values, mean, strict=True)]
                assert all(a.low == b == a.high for a, b in zip(due.gradients[name], mean, strict=True))
            assert due.weights == {name: tuple(map(Fraction, values)) for name, values in weights.items()}


@pytest.mark.parametrize("policy", EXPERT_DIVISORS)
def test_a_norm_has_no_room_for_a_parameter_more_or_less(policy: str) -> None:
    for mixture in sample(draws.clipped(CLAIMS), 100):
        plain = expected(replace(mixture, max_norm=None), policy)[0]
        elements = [float(each.low) for values in plain.gradients.values() for each in values]
        assert isclose(float(plain.norm.low), sqrt(sum(each * each for each in elements)), rel_tol=1e-5)
        used = [
            sum(each.low**2 for each in values) for values in plain.gradients.values() if any(v.low for v in values)
        ]
        # A share of half a parameter moves the square of the norm by more than the bounds are apart.
        assert all(each / 2 > plain.norm.high**2 - plain.norm.low**2 for each in used)


def test_words_say_everything_that_is_drawn() -> None:
    mixture = Mixture(2, 2, (1,), (1, 2), (((1, 1),), ()), True, 3, (4, 2), ((),))
    assert mixture.words() == (
        "2 ranks (1 data x 2 expert); parameters dense.0 (1), experts.0 (1), experts.1 (2); 2 steps; in step 0 "
        "experts.1 is no part of the loss of rank 1; clipped to a norm of 8; loaded on 4 ranks (2 data x 2 expert); "
        "1 step"
    )
