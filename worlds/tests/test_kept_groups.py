"""Connections of groups that serve one example after the other, as NCCL's do; here they are gloo's."""

from collections.abc import Iterator

import pytest

from lockstep.worlds.contract import Job
from lockstep.worlds.pool import PoolWorld
from lockstep.worlds.serving import Setup
from lockstep.worlds.tests.outcomes import results

IN_GROUPS = Job("lockstep.worlds.tests.kept_groups:in_groups", "null", 3)


@pytest.fixture(scope="module", params=[True, False], ids=["kept", "made anew"])
def world(request: pytest.FixtureRequest) -> Iterator[PoolWorld]:
    world = PoolWorld(Setup("gloo", keeps_groups=request.param))
    yield world
    world.close()


def test_groups_that_are_kept_add_up_as_those_that_are_made_anew(world: PoolWorld) -> None:
    for _ in range(3):
        first, second, third = results(world.run(IN_GROUPS))
        assert first["sums"] == second["sums"] == [3.0, 30.0, 300.0, 3003.0]
        assert third["sums"] == [3003.0]


def test_two_groups_of_the_same_members_are_kept_and_stay_two(world: PoolWorld) -> None:
    kept = world._setup.keeps_groups
    before, after = (results(world.run(IN_GROUPS))[0]["connections"] for _ in range(2))
    assert len(set(before)) == 4
    assert [one == other for one, other in zip(before, after, strict=True)][:2] == [kept] * 2
