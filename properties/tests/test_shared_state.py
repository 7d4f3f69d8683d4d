"""What simulated ranks share, as they are one process, fails nothing that is right where ranks are processes."""

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from lockstep.properties.catalogue import every_law
from lockstep.properties.reports.matrix import PROPERTY
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.hold import SHARED, hold
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World
from lockstep.worlds.sim.possessions import Possessions

LAWS = every_law()
MEAN = LAWS["test_gradients_equal_the_mean_over_ranks"]


@pytest.mark.parametrize("name", ["Bookkeeping", "CountsInAGlobal", "Singleton"])
def test_class_attributes_and_global_variables_are_kept_apart_where_ranks_fail_over_them(
    sim: World, gloo: World, name: str
) -> None:
    under_test = trial_of(f"lockstep.properties.tests.shared_state:{name}", sim, confirm_on=lambda: gloo)
    filed: list[tuple[str, Any]] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hold(MEAN, under_test, lambda key, value: filed.append((key, value)), Budget("0", examples=30))
    assert [value["verdict"] for key, value in filed if key == PROPERTY] == ["holds"]
    assert [SHARED in str(each.message) for each in told] == [True]


def test_what_nothing_else_refers_to_is_copied_and_the_rest_is_shared() -> None:
    module: Any = ModuleType("mine")
    exec(
        "import collections, functools, itertools\n"
        "class Kind:\n    __slots__ = ()\n    kept = {}\n    made = 0\n"
        "nested, alias = {'a': []}, collections.Counter()\n"
        "same, numbers, default = alias, itertools.count(3), [1]\n"
        "def called(into=default): return into\n"
        "@functools.lru_cache\n"
        "def once(): return object()\n",
        vars(module),
    )
    before = {name: id(value) for name, value in vars(module).items()}
    kept, first = id(module.Kind.kept), module.once()
    possessions = Possessions([module])

    def on(rank: int, does: Callable[[], object]) -> None:
        possessions.take_out(rank)
        does()
        possessions.put_away(rank)

    def change() -> None:
        module.Kind.kept["x"], module.Kind.made, module.new = 1, 2, 3
        module.nested["a"].append(4)
        module.alias["b"] += 1
        module.default.append(2)
        assert module.same is module.alias
        assert next(module.numbers) == 3
        assert module.once() is not first

    def look() -> None:
        assert (module.Kind.kept, module.Kind.made, module.nested, module.same["b"]) == ({}, 0, {"a": []}, 0)
        assert not hasattr(module, "new")
        assert module.default is module.called()
        assert module.default[-1] == 2, "it is shared, as a default argument is the same list"

    on(0, change)
    on(1, look)
    possessions.give_back()
    assert {name: id(value) for name, value in vars(module).items()} == before
    assert id(module.Kind.kept) == kept
    assert module.nested == {"a": []}
