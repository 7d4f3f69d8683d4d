"""Right implementations are right, and never flagged, whenever collectives read and write; forgotten waits are."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Finish, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.implementations import CORRECT
from lockstep.properties.tests.wrapped import WRAPPERS
from lockstep.properties.trial import job
from lockstep.worlds.contract import MOMENTS_TO_READ, MOMENTS_TO_WRITE, Asynchrony, Job, World
from lockstep.worlds.tests.outcomes import plain, results

CHOICES = [
    Asynchrony(reads, writes, (0, 1, 3, 2, 0, 5, 1, 1))
    for reads, writes in itertools.product(MOMENTS_TO_READ, MOMENTS_TO_WRITE)
]


def scenario(size: int) -> Scenario:
    """Three parameters in two buckets, a micro-batch accumulated, and hooks in another order on every other rank."""
    orders = tuple(((0, 1, 2), (2, 0, 1))[rank % 2] for rank in range(size))
    first = (Backward(orders, False), Backward(orders), Finish(), Step(), ZeroGrad())
    shapes = (Parameter((2, 2)), Parameter((3,)), Parameter((1,)))
    return Scenario(size, shapes, (*first, Backward(orders), Finish(), Step()), bucket_cap=16)


def unmoved(world: World, job: Job, choices: list[Asynchrony]) -> None:
    """The job has one result, and nothing to be said against it, under every choice."""
    usual = plain(results(world.run(job)))
    for choice in choices:
        outcome = world.run(replace(job, asynchrony=choice))
        assert [str(hazard) for report in outcome for hazard in report.hazards] == []
        assert plain(results(outcome)) == usual


@pytest.mark.parametrize("implementation", CORRECT)
def test_what_ships_is_never_flagged_and_has_one_result(sim: World, implementation: str) -> None:
    for size in (2, 3):
        unmoved(sim, job(implementation, scenario(size)), CHOICES)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_torchs_wrappers_are_never_flagged_and_have_one_result(sim: World, wrapper: str) -> None:
    unmoved(sim, Job("lockstep.properties.tests.wrapped:train", wrapper, 2), CHOICES)


@given(draws=st.lists(st.integers(0, 6), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_static_buckets_have_one_result_whatever_is_drawn(sim: World, draws: list[int]) -> None:
    choice = Asynchrony("drawn", "drawn", tuple(draws))
    unmoved(sim, job("lockstep.impls.static_buckets:StaticBuckets", scenario(2)), [choice])


def test_a_wrapper_that_waits_for_nobody_is_named_with_its_line(sim: World) -> None:
    alike = Backward(((0, 1, 2), (0, 1, 2)))
    steps = Scenario(2, scenario(2).parameters, (alike, Finish(), Step(), ZeroGrad(), alike, Finish(), Step()))
    here = job("lockstep.properties.tests.wrapped:WaitsForNoReduction", steps)
    for choice in CHOICES:
        for rank, report in enumerate(sim.run(replace(here, asynchrony=choice))):
            assert "dropped" in {hazard.kind for hazard in report.hazards}
            assert {hazard.rank for hazard in report.hazards} == {rank}
            assert all("wrapped.py" in hazard.launched for hazard in report.hazards)
