"""What an example changes for its whole process or thread is not there for the next."""

import types
from collections.abc import Iterator

import pytest
import torch

from lockstep.worlds.contract import Job, World
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.settings import Functions, Surroundings
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.changes import CHANGES, OF_A_MAIN_THREAD
from lockstep.worlds.tests.outcomes import results


@pytest.fixture(params=[SimWorld, GlooWorld], scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each of the two in turn; none that other tests use, for what they run must not be there."""
    made: World = request.param()
    yield made
    made.close()


@pytest.mark.parametrize("name", sorted({*CHANGES} - {*OF_A_MAIN_THREAD}))
def test_the_next_example_finds_what_the_first_has_found(world: World, name: str) -> None:
    is_as_before(world, name)


@pytest.mark.parametrize("name", OF_A_MAIN_THREAD)
def test_so_it_does_of_what_only_a_main_thread_may_change(name: str) -> None:
    world = GlooWorld()
    try:
        is_as_before(world, name)
    finally:
        world.close()


def is_as_before(world: World, name: str) -> None:
    """Of two examples, the first of which changes what is named."""
    changed = world.run(Job("lockstep.worlds.tests.changes:change", name, 2))
    found = results(changed)
    assert found[0]["before"] != found[0]["after"]
    told = CHANGES[name][2]
    for report in changed if world.name == "gloo" else changed[:1]:
        assert report.left == ((f"another {told}",) if told else ())
    for each in results(world.run(Job("lockstep.worlds.tests.changes:see", name, 2))):
        assert each["before"] == found[0]["before"]


def test_a_function_that_is_replaced_is_told_whatever_else_the_module_has_got() -> None:
    """A tensor refuses to say whether it is equal to another."""
    module = types.ModuleType("torch.some")
    module.values, module.first, module.second = torch.zeros(2), len, sum  # type: ignore[attr-defined]
    found = Surroundings([Functions(module, None)])
    module.values = torch.ones(2)  # type: ignore[attr-defined]
    assert found.restore() == []
    module.values, module.second, module.third = torch.ones(2), max, min  # type: ignore[attr-defined]
    assert found.restore() == ["another torch.some.second"]
    assert found.restore() == []
    del module.first
    assert found.restore() == ["another torch.some.first"]


def test_what_a_module_sets_when_it_is_imported_stays(world: World) -> None:
    """It is imported but once, in a real job too."""
    for _ in range(3):
        outcome = world.run(Job("lockstep.worlds.tests.changes_when_imported:see", "", 2))
        assert [each["dtype"] for each in results(outcome)] == ["torch.float64"] * 2
        assert [report.left for report in outcome] == [()] * 2


def test_examples_may_compile_one_after_another_in_one_process(world: World) -> None:
    """What torch itself replaces then is not told, and what it has compiled is forgotten: it compiles a function but so
    often, of all examples' modules.
    """
    processes = []
    for layers in range(1, 11):
        outcome = world.run(Job("lockstep.worlds.tests.changes:compiling", str(layers), 2, limit=60.0))
        assert [each["same"] for each in results(outcome)] == [True, True]
        assert [report.left for report in outcome] == [(), ()]
        processes.append([each["process"] for each in results(outcome)])
    assert processes == processes[:1] * 10
    outcome = world.run(Job("lockstep.worlds.tests.changes:compiling_and_replacing", "", 2))
    for report in outcome if world.name == "gloo" else outcome[:1]:
        assert report.left == ("another torch.Module.__init__",)
