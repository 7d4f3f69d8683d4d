"""What is rare but right runs, on both worlds alike; what is wrong is wrong on both."""

import functools
from typing import Any

import pytest

from lockstep.worlds.contract import World
from lockstep.worlds.tests.oddities import LAYOUTS, OPERATIONS, REFUSED
from lockstep.worlds.tests.outcomes import kinds, messages, plain, results, run_of

run = functools.partial(run_of, "oddities")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_tensor_is_sent_as_it_lies_in_memory(sim: World, gloo: World, operation: str, layout: str) -> None:
    """So gaps, and strides that are not the same on all ranks, corrupt silently on sim as they do on gloo."""
    here, there = (results(run(each, "in_a_layout", 3, f"{operation}, {layout}")) for each in (sim, gloo))
    assert plain(here) == plain(there)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_recorded_is_what_lies_in_memory(sim: World, gloo: World, operation: str) -> None:
    payload = f"{operation}, transposed on one rank"
    outcomes = [run(each, "in_a_layout", 3, payload, contents=True) for each in (sim, gloo)]
    here, there = ([plain([call.sent for call in report.collectives]) for report in each] for each in outcomes)
    assert here == there


def test_an_expanded_tensor_is_read(sim: World, gloo: World) -> None:
    """By what minds strides; "an expanded tensor" below is read by what does not."""
    here, there = (results(run(each, "reading_the_expanded", 2)) for each in (sim, gloo))
    assert plain(here) == plain(there)
    assert here[0]["read"].tolist() == [1, 1, 1, 1, 2, 2, 2, 2] * 2 + [3, 3]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_group_is_called_in_every_form_that_torch_has(sim: World, gloo: World, size: int) -> None:
    meant = plain(results(run(gloo, "calling_in_every_form", size, "plain")))
    for world in (sim, gloo):
        assert plain(results(run(world, "calling_in_every_form", size, "world"))) == meant
    assert all(each["counted"] and each["refused"] == [True] * 3 for each in meant)


def test_a_tensor_without_memory_of_its_own_is_reduced(world: World) -> None:
    for each in results(run(world, "reducing_wrapped", 2)):
        assert dict(each) == {"flying": [6, 6], "wrapped": [3, 3]}


def test_gloos_calls_go_through_torchs_dispatcher(gloo: World) -> None:
    assert [each["count"] for each in results(run(gloo, "counting_calls", 2))] == [1, 1]


@pytest.mark.parametrize("reduction", ["SUM", "MAX", "PRODUCT"])
def test_a_reduction_to_one_rank_leaves_on_the_others_what_gloo_leaves(sim: World, gloo: World, reduction: str) -> None:
    """Nobody may use it, and code that does is to be wrong on sim too."""
    changed = 0
    for size, count, root in ((2, 1, 0), (2, 1, 1), (2, 5, 0), (3, 1, 0), (3, 8, 2), (4, 5, 1), (5, 33, 3), (4, 0, 0)):
        payload = f"{count}, {root}, {reduction}"
        here, there = (results(run(each, "reducing_to_one", size, payload)) for each in (sim, gloo))
        assert plain(here) == plain(there)
        own = ([element % 5 + 2.0 * rank + 1 for element in range(count)] for rank in range(size))
        changed += any(
            rank != root and each["values"].tolist() != mine
            for rank, (each, mine) in enumerate(zip(here, own, strict=True))
        )
    assert changed >= 5


@pytest.mark.parametrize("name", ["destroying_a_group", "beginning_again", "calling_the_group"])
def test_groups_end_and_begin_and_are_called_without_options(sim: World, gloo: World, name: str) -> None:
    for size in (2, 3):
        here, there = (results(run(each, name, size)) for each in (sim, gloo))
        assert plain(here) == plain(there)
        for rank, each in enumerate(here):
            ones = [value for other in range(size) for value in (other, other)]
            of_each: dict[str, dict[str, list[Any]]] = {
                "destroying_a_group": {"values": [[size * (size + 1) / 2] * 2] * 3},
                "beginning_again": {"values": [size * (size + 1) / 2] * 2, "some": [2.0 if rank < 2 else 1.0]},
                "calling_the_group": {"gathered": [*ones, *ones, *(rank + 10 * other for other in range(size))]},
            }
            assert {key: each[key].tolist() for key in of_each[name]} == of_each[name]


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_backend_does_is_an_error_of_one_type_on_both(sim: World, gloo: World, what: str) -> None:
    """Of a type, where it is the backend's, that no law takes for a deliberate refusal by the implementation."""
    here = run(sim, "being_refused", 2, what)
    kind = "IndexError" if what == "a root that is not there" else "RuntimeError"  # torch.distributed's own check
    assert {message.partition(":")[0] for message in messages(here)} == {kind}
    if what not in ("an expanded tensor", "no memory"):  # beyond the one gloo writes, and lets the other pass
        there = run(gloo, "being_refused", 2, what)
        kind = "NotImplementedError" if what == "no tensor" else kind  # torch's dispatcher, not Python code
        assert {message.partition(":")[0] for message in messages(there)} == {kind}


def test_a_handle_tells_the_same_on_both(sim: World, gloo: World) -> None:
    here, there = (results(run(each, "looking_at_work", 2)) for each in (sim, gloo))
    assert plain(here) == plain(there)


def test_ranks_may_end_as_soon_as_they_have_made_a_group(gloo: World) -> None:
    """Before there was a meeting at the end, some 7 of 60 failed to connect."""
    for _ in range(60):
        results(run(gloo, "making_a_group_last", 4))


@pytest.mark.parametrize("another", ["KeyError", "SystemExit"])
def test_an_exception_that_cannot_be_told_is_told_all_the_same(world: World, another: str) -> None:
    outcome = run(world, "raising_the_unspeakable", 2, another)
    assert kinds(outcome) == ["raised"] * 2
    assert set(messages(outcome)) == {f"_CannotBeTold, whose message cannot be had: {another}"}


def test_the_message_of_an_exception_names_ranks_of_groups_and_no_addresses_of_objects(world: World) -> None:
    """Addresses differ between runs; one that is no object's is the message's own."""
    outcome = run(world, "raising_with_objects", 2)
    objects = "<group of global ranks 0, 1> and <object object>, <function _memory> in C++ at 0x10"
    assert set(messages(outcome)) == {f"ValueError: {objects}"}
    assert [report.error and report.error.notes for report in outcome] == [("with <object object>",)] * 2
