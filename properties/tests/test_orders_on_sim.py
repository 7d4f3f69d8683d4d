"""The simulated world reduces in the order that it is given: the oracle's, and with gloo's it has gloo's bits."""

import json
from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.oracle.collectives import finish
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import ORDERS, Order, Tree, evaluate_order, from_json, reduction_order
from lockstep.properties.ranks.plain_collectives import REDUCTIONS
from lockstep.properties.tests.reductions import floats
from lockstep.worlds.contract import Job, World
from lockstep.worlds.sim.world import SimWorld

COLLECTIVES = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter_tensor", "all_reduce of a subgroup")


def bits(world: World, size: int, *what: tuple[str, str, str, int], **options: object) -> list[list[bytes]]:
    """What each rank has after the collectives of `properties.tests.reductions.reduced`."""
    job = Job("lockstep.properties.tests.reductions:reduced", json.dumps(what), size, **options)  # type: ignore[arg-type]
    outcome = world.run(job)
    assert [report.error for report in outcome] == [None] * size
    return [report.result["bits"] for report in outcome if report.result is not None]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_with_gloos_order_the_simulated_world_has_gloos_bits(sim: World, gloo: World, size: int, form: str) -> None:
    what = [(*each[:2], form, each[2]) for each in product(COLLECTIVES, REDUCTIONS, (size, 7 * size, 60 * size))]
    simulated, real = bits(sim, size, *what, order=partial(reduction_order, "gloo")), bits(gloo, size, *what)
    assert simulated == real
    # The order shows: from three ranks on many would have other bits if the ranks were added from 0 upwards.
    others = bits(sim, size, *what)
    assert size == 2 or sum(ours != theirs for ours, theirs in zip(simulated[-1], others[-1], strict=True)) > 9


@pytest.mark.parametrize(
    ("form", "accumulator"),
    [*((form, None) for form in FORMATS), ("float32", "float64"), ("float16", "float32"), ("bfloat16", "float32")],
)
@pytest.mark.parametrize("name", ORDERS)
def test_every_order_of_the_oracle_is_followed_bit_for_bit(
    sim: World, name: str, accumulator: str | None, form: str
) -> None:
    number = FORMATS[form]
    for size in (2, 3, 6):
        what, expected = [], []
        for elements, reduction in product((0, 13, 50), ("sum", "average", "product")):
            arrays = [floats(rank, elements, form).astype(number.numpy) for rank in range(size)]
            order = reduction_order(name, elements, number.bytes, size)
            combined = evaluate_order(order, arrays, "sum" if reduction == "average" else reduction, accumulator)
            expected.append(finish(reduction, combined, size).tobytes())
            what.append(("all_reduce", reduction, form, elements))
        seen = bits(sim, size, *what, order=partial(reduction_order, name), accumulator=accumulator or "")
        assert seen == [expected] * size


def test_the_order_of_nothing_said_is_rank_order(sim: World) -> None:
    what = ("all_reduce", "sum", "bfloat16", 50)
    stated = bits(sim, 5, what, order=partial(reduction_order, "rank"))
    assert bits(sim, 5, what) == stated
    wider = bits(sim, 5, what, accumulator="float32")
    assert wider == bits(sim, 5, what, order=partial(reduction_order, "rank"), accumulator="float32") != stated


def always(order: Order, elements: int, element_bytes: int, members: int) -> Order:
    """An order of one's own, for a collective whose size is known."""
    return order


def trees(members: list[int]) -> st.SearchStrategy[Tree]:
    """Any tree of pairs over these ranks."""
    if len(members) == 1:
        return st.just(members[0])
    cuts = st.tuples(st.permutations(members), st.integers(1, len(members) - 1))
    return cuts.flatmap(lambda cut: st.tuples(trees(cut[0][: cut[1]]), trees(cut[0][cut[1] :])))


@given(order=st.tuples(st.integers(1, 12), trees(list(range(5))), trees(list(range(5)))))
@settings(max_examples=30, deadline=None)
def test_any_order_that_is_drawn_is_followed_also_through_json(sim: SimWorld, order: tuple[int, Tree, Tree]) -> None:
    cut, left, right = order
    drawn = from_json(json.loads(json.dumps([(0, cut, left), (cut, 13, right)])))
    expected = evaluate_order(drawn, [floats(rank, 13, "float32") for rank in range(5)])
    seen = bits(sim, 5, ("all_reduce", "sum", "float32", 13), order=partial(always, drawn))
    assert seen == [[expected.tobytes()]] * 5


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([(0, 3, (0, 1))], "must cover the elements 0..4"),
        ([(0, 2, (0, 1)), (3, 4, (0, 1))], "must cover the elements 0..4"),
        ([(0, 4, (0, 0))], "must have each of the members 0..1 exactly once"),
        ([(0, 4, (0, 1, 0))], "must have each of the members 0..1 exactly once"),
    ],
)
def test_what_is_no_order_is_refused(sim: World, order: Order, said: str) -> None:
    job = Job(
        "lockstep.properties.tests.reductions:reduced",
        json.dumps([("all_reduce", "sum", "float32", 4)]),
        2,
        order=partial(always, order),
    )
    messages = [report.error.message for report in sim.run(job) if report.error is not None]
    assert any(said in message for message in messages)
