"""The simulated world with many ranks and over many examples: nothing breaks, nothing is left behind.

100,000 examples of the kinds without a wrapper in one process grew it from 309 to 323 MB, the last 10,000 by nothing,
with the same threads and files throughout (torch 2.13). `python -m lockstep.worlds.tests.at_length` does that with all
kinds.
"""

import json

import pytest

from lockstep.worlds.contract import Job
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.at_length import held_after, left_behind
from lockstep.worlds.tests.outcomes import call, kinds, plain, results, run_calls

WARM_UP, EXAMPLES = 80, 320


@pytest.mark.parametrize("size", [33, 64])
def test_up_to_64_ranks(size: int) -> None:
    world = SimWorld(limit=60.0)
    try:
        calls = [call(do, count=size) for do in ("all_reduce", "reduce_scatter_tensor", "all_gather", "broadcast")]
        outcome = run_calls(world, [calls] * size)
        total = [size * (element + 1) + 10 * sum(range(size)) for element in range(size)]
        for rank, result in enumerate(results(outcome)):
            summed, scattered, gathered, _ = result["results"]
            assert summed[0].tolist() == total
            assert scattered[0].tolist() == [total[rank]]
            assert [values[0] for values in gathered] == [1 + 10 * other for other in range(size)]
        assert plain(run_calls(world, [calls] * size)) == plain(outcome)
        assert kinds(run_calls(world, [calls] * (size - 1) + [[]])) == ["deadlock"] * (size - 1) + [None]
    finally:
        world.close()


def test_nothing_is_left_behind_by_many_examples() -> None:
    held = held_after(EXAMPLES, WARM_UP)
    assert left_behind(held, EXAMPLES) == [], held
    assert {each.known for each in held} == {1}  # the default group


@pytest.mark.parametrize("what", ["files", "groups", "objects", "allocated"])
def test_what_is_left_behind_is_seen(what: str) -> None:
    held = held_after(80, 20, [Job("lockstep.worlds.tests.at_length:leak", json.dumps(what), 2)])
    assert what in left_behind(held, 80), held
