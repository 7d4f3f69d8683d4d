"""A world is looked at before anything is judged on it: sound ones pass, and each way to be wrong is named."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.oracle.collectives import OPERATIONS
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import chain, evaluate
from lockstep.properties import test_mean
from lockstep.properties.claims import Claims
from lockstep.properties.implementations import Implementation
from lockstep.properties.law import law_of
from lockstep.properties.running.hold import hold
from lockstep.properties.soundness import Unsound, check
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Job, Outcome, RankError, World

SIZES = (1, 2, 3, 7)
Spoil = Callable[[dict[str, Any], list[list[Any]]], None]


class Spoiled:
    """A world that runs every job on a sound one and then changes what came out of some collectives."""

    def __init__(self, sound: World, spoil: Spoil) -> None:
        self.sound, self.spoil = sound, spoil
        self.name, self.device, self.limit, self.ranks = sound.name, sound.device, sound.limit, sound.ranks

    def run(self, job: Job) -> Outcome:
        outcome = self.sound.run(job)
        for number, call in enumerate(json.loads(job.payload)):
            self.spoil(call, [report.result["results"][number] for report in outcome if report.result is not None])
        return outcome

    def close(self) -> None:
        """The sound world is not ours to close."""


def on(
    operation: str,
    change: Callable[[dict[str, Any], list[list[Any]]], None],
    reduction: str = "sum",
    dtypes: Iterable[str] = FORMATS,
    group: list[int] | None = None,
    asynchronous: bool = False,
) -> Spoil:
    """Changes the results of one collective on three ranks."""

    def spoil(call: dict[str, Any], by_rank: list[list[Any]]) -> None:
        asked = (call["operation"], call["reduction"], call["group"], call["asynchronous"], len(by_rank))
        if asked == (operation, reduction, group, asynchronous, 3) and call["dtype"] in dtypes:
            change(call, by_rank)

    return spoil


def doubled_on_the_last_rank(_: dict[str, Any], by_rank: list[list[Any]]) -> None:
    by_rank[-1][0] = by_rank[-1][0] + by_rank[-1][0]


def not_divided(_: dict[str, Any], by_rank: list[list[Any]]) -> None:
    for got in by_rank:
        got[0] = (got[0] * len(by_rank)).astype(got[0].dtype)


def without_rank_1(call: dict[str, Any], by_rank: list[list[Any]]) -> None:
    for got in by_rank:
        got[0] = (got[0] - np.array(call["arrays"][1])).astype(got[0].dtype)


def of_the_wrong_root(call: dict[str, Any], by_rank: list[list[Any]]) -> None:
    for got in filter(None, by_rank):
        got[0] = np.array(call["arrays"][1]).astype(got[0].dtype)


def swapped(_: dict[str, Any], by_rank: list[list[Any]]) -> None:
    by_rank[0][:], by_rank[1][:] = by_rank[1][:], by_rank[0][:]


def rounded_to_a_float(call: dict[str, Any], by_rank: list[list[Any]]) -> None:
    for got in by_rank:
        width = {"int64": np.float64, "int32": np.float32}[call["dtype"]]
        got[0] = got[0].astype(width).astype(call["dtype"])


def unheard(_: dict[str, Any], by_rank: list[list[Any]]) -> None:
    """What rank 1 alone has is lost."""
    for got in by_rank:
        got[0][1] = 0


def the_world_s(call: dict[str, Any], by_rank: list[list[Any]]) -> None:
    """What ranks outside of the group have is added as well."""
    for got in by_rank[1:]:
        got[0] = got[0] + np.array(call["arrays"][0], got[0].dtype)


def not_yet_there(call: dict[str, Any], by_rank: list[list[Any]]) -> None:
    """A rank still has its own."""
    by_rank[1][0] = np.array(call["arrays"][1], by_rank[1][0].dtype)


def swapped_places(_: dict[str, Any], by_rank: list[list[Any]]) -> None:
    by_rank[-1][0], by_rank[-1][1] = by_rank[-1][1], by_rank[-1][0]


def added_from_the_last_rank(call: dict[str, Any], by_rank: list[list[Any]]) -> None:
    arrays = [np.array(each).astype(FORMATS[call["dtype"]].numpy) for each in call["arrays"]]
    for got in by_rank:
        got[0] = evaluate(chain((2, 1, 0)), arrays)


SPOILED = {
    "an average that is not divided": (
        on("all_reduce", not_divided, "average"),
        r"all_reduce\(average, float64\) on 3 ranks of the sim world: rank 0 gets",
    ),
    "one rank that gets another sum": (on("all_reduce", doubled_on_the_last_rank), "rank 2 gets"),
    "a sum that leaves a rank out": (on("all_reduce", without_rank_1), r"all_reduce\(sum, float64\) on 3 ranks"),
    "shards given to the wrong ranks": (on("reduce_scatter_tensor", swapped), r"reduce_scatter_tensor\(sum"),
    "a broadcast of another root": (on("broadcast", of_the_wrong_root), r"broadcast\(sum, float64\) on 3 ranks"),
    "a sum of integers that goes through floats": (
        on("all_reduce", rounded_to_a_float, dtypes=["int64"]),
        r"^all_reduce\(sum, int64\) on 3 ranks of the sim world: rank 0 gets",
    ),
    "a sum of 32-bit integers that goes through floats": (
        on("all_reduce", rounded_to_a_float, dtypes=["int32"]),
        r"^all_reduce\(sum, int32\) on 3 ranks",
    ),
    "a byte that is not counted": (
        on("all_reduce", without_rank_1, dtypes=["uint8"]),
        r"^all_reduce\(sum, uint8\) on 3 ranks",
    ),
    "a flag that does not arrive": (
        on("all_reduce", unheard, "max", dtypes=["bool"]),
        r"^all_reduce\(max, bool\) on 3 ranks",
    ),
    "a buffer of integers from another root": (
        on("broadcast", of_the_wrong_root, dtypes=["int64"]),
        r"^broadcast\(sum, int64\) on 3 ranks",
    ),
    "objects of the wrong ranks": (
        on("all_gather_object", swapped_places, dtypes=["int64"]),
        r"^all_gather_object\(sum, int64\)",
    ),
    "an object of another root": (
        on("broadcast_object_list", of_the_wrong_root, dtypes=["int64"]),
        r"^broadcast_object_list\(sum, int64",
    ),
    "a group that adds up all ranks": (
        on("all_reduce", the_world_s, group=[1, 2]),
        r"^all_reduce\(sum, float32\) in the group \[1, 2\] on 3 ranks of the sim world: rank 1 gets",
    ),
    "a group that takes a place for a rank": (
        on("broadcast", of_the_wrong_root, group=[1, 2]),
        r"^broadcast\(sum, float32\) in the group \[1, 2\]",
    ),
    "a handle whose wait does not wait": (
        on("all_reduce", not_yet_there, asynchronous=True),
        r"^asynchronous all_reduce\(sum, float32\) on 3 ranks of the sim world: rank 1 gets",
    ),
    "a handle of a group whose wait does not wait": (
        on("all_reduce", not_yet_there, group=[1, 2], asynchronous=True),
        r"^asynchronous all_reduce\(sum, float32\) in the group \[1, 2\] on 3 ranks of the sim world: rank 1 gets",
    ),
    **{
        f"{operation} to the wrong ranks": (on(operation, swapped), rf"^{operation}\(sum, float32\) on 3 ranks")
        for operation in ("scatter", "all_to_all", "all_to_all_single", "send and recv")
    },
    **{
        f"a sparse sum that {'a' * later}synchronously leaves a rank out": (
            on("all_reduce, sparse", without_rank_1, asynchronous=later),
            rf"^{'asynchronous ' * later}all_reduce, sparse\(sum, float32\) on 3 ranks",
        )
        for later in (False, True)
    },
    "a gather in the wrong order": (on("gather", swapped_places), r"^gather\(sum, float32\) on 3 ranks"),
    **{
        f"{operation} of which only a part arrives": (
            on(operation, not_yet_there),
            rf"^{operation}\(sum, float32\) on 3 ranks",
        )
        for operation in ("all_reduce, coalesced", "broadcast, coalesced")
    },
    "an order that is not the predicted one": (
        on("all_reduce", added_from_the_last_rank),
        r"adds in the order \[0,13\) \(\(r1\+r2\)\+r0\) and not, as predicted, \[0,13\) \(\(r0\+r1\)\+r2\)",
    ),
}


@pytest.mark.parametrize("name", ["sim", "gloo"])
def test_the_worlds_that_ship_are_sound(name: str, request: pytest.FixtureRequest) -> None:
    check(request.getfixturevalue(name), SIZES)


@pytest.mark.parametrize("what", SPOILED)
def test_a_world_that_is_wrong_is_named_with_the_collective_and_the_values(sim: World, what: str) -> None:
    spoil, words = SPOILED[what]
    with pytest.raises(Unsound, match=words):
        check(Spoiled(sim, spoil), SIZES)


def test_every_reduction_of_every_format_is_also_looked_at_on_numbers_of_ranks_that_see_but_some(sim: World) -> None:
    """On three and on eight ranks all are; on each other number sum, average and one more."""
    seen: dict[int, set[tuple[str, str]]] = {size: set() for size in range(1, 9)}

    def note(call: dict[str, Any], by_rank: list[list[Any]]) -> None:
        if call["operation"] == "reduce":
            seen[len(by_rank)].add((call["dtype"], call["reduction"]))

    check(Spoiled(sim, note))
    every = {(dtype, reduction) for dtype in FORMATS for reduction in OPERATIONS}
    assert seen.pop(3) == seen.pop(8) == every
    assert set.union(*seen.values()) == every
    assert {len(pairs) for pairs in seen.values()} == {3 * len(FORMATS)}


def test_an_error_of_the_worlds_is_its_own_fault(sim: World) -> None:
    class Broken(Spoiled):
        def run(self, job: Job) -> Outcome:
            *others, last = super().run(job)
            return (*others, replace(last, result=None, error=RankError("raised", "RuntimeError: no route to host")))

    with pytest.raises(Unsound, match="on 2 ranks, rank 1 ended its collectives with RuntimeError: no route to host"):
        check(Broken(sim, lambda call, by_rank: None), (2,))


def test_nothing_is_judged_on_a_world_that_is_wrong(sim: World) -> None:
    filed: list[Any] = []
    naive = Implementation("lockstep.impls.naive:NaiveDataParallel", Claims())
    trial = Trial(naive, sim, world_fault="all_reduce(sum, float32) on 3 ranks: rank 2 gets 4 where it must get 3")
    with pytest.raises(pytest.fail.Exception, match="Nothing is judged on the sim world: all_reduce"):
        hold(law_of(test_mean.test_gradients_equal_the_mean_over_ranks), trial, lambda _, value: filed.append(value))
    assert [each["verdict"] for each in filed] == ["not judged: the backend is at fault"]
    assert not trial.witnessed
