"""Orders checked against exact rational arithmetic rounded node by node; revealing checked on orders that are known."""

import json
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.collectives import Array, all_reduce
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.reduction_order import (
    ORDERS,
    Order,
    Tree,
    binary_tree,
    canonical,
    canonical_order,
    chain,
    check_order,
    check_tree,
    evaluate,
    evaluate_order,
    from_json,
    leaves,
    leaves_where_they_meet,
    reduction_order,
    reveal,
    show,
    show_tree,
)
from lockstep.oracle.rounding import round_to_nearest
from lockstep.oracle.tests.examples import examples

forms = st.sampled_from(list(FORMATS))


@st.composite
def binary_trees(draw: st.DrawFn) -> Tree:
    """Any way to add the ranks of a world two by two; the plainest is rank order."""
    parts: list[Tree] = list(range(draw(st.integers(1, 7))))
    while len(parts) > 1:
        left = parts.pop(draw(st.integers(0, len(parts) - 1)))
        right = parts.pop(draw(st.integers(0, len(parts) - 1)))
        parts.insert(0, (left, right))
    return parts[0]


def floats(world_size: int, elements: int, form: str, seed: int = 0) -> list[Array]:
    """Floats whose sums round, different on every rank."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((world_size, elements)) * 2.0 ** random.integers(-4, 5, (world_size, elements))
    return list(values.astype(FORMATS[form].numpy))


def exactly(tree: Tree, values: tuple[float, ...], form: str) -> Fraction:
    """The rule in rational numbers: every node is rounded to the format, once."""
    if isinstance(tree, int):
        return Fraction(float(values[tree]))
    return Fraction(round_to_nearest(sum((exactly(part, values, form) for part in tree), Fraction(0)), form))


@given(binary_trees(), forms, st.integers(0, 2**32))
@examples(120)
def test_every_node_rounds_to_the_wire(tree: Tree, form: str, seed: int) -> None:
    arrays = floats(len(leaves(tree)), 5, form, seed)
    result = evaluate(tree, arrays)
    assert result.dtype == FORMATS[form].numpy
    assert [Fraction(float(x)) for x in result] == [exactly(tree, column, form) for column in zip(*arrays, strict=True)]


@given(binary_trees(), st.sampled_from(["float32", "float16", "bfloat16"]), st.booleans(), st.integers(0, 2**32))
@examples(120)
def test_with_an_accumulator_every_node_rounds_to_it_and_the_end_to_the_wire(
    tree: Tree, form: str, wide: bool, seed: int
) -> None:
    accumulator = "float64" if wide or form == "float32" else "float32"
    arrays = floats(len(leaves(tree)), 5, form, seed)
    result = evaluate(tree, arrays, accumulator=accumulator)
    assert result.dtype == FORMATS[form].numpy
    for x, column in zip(result, zip(*arrays, strict=True), strict=True):
        assert float(x) == round_to_nearest(exactly(tree, column, accumulator), form)


def test_hops_on_the_wire_and_a_wide_accumulator_differ() -> None:
    arrays = [np.array([x], FORMATS["bfloat16"].numpy) for x in (256, 1, 1)]
    assert float(evaluate(((0, 1), 2), arrays)[0]) == 256
    assert float(evaluate(((0, 1), 2), arrays, accumulator="float32")[0]) == 258
    assert float(evaluate((0, (1, 2)), arrays)[0]) == 258


def test_products_and_extremes_are_evaluated_too() -> None:
    arrays = [np.array([x]) for x in (3.0, -5.0, 7.0)]
    values = [evaluate(((2, 1), 0), arrays, op).tolist() for op in ("product", "min", "max")]
    assert values == [[-105.0], [-5.0], [7.0]]


@pytest.mark.parametrize("form", FORMATS)
def test_rank_order_is_the_order_of_the_plain_all_reduce(form: str) -> None:
    arrays = floats(5, 100, form)
    order = reduction_order("rank", 100, FORMATS[form].bytes, 5)
    assert evaluate_order(order, arrays).tobytes() == all_reduce(arrays)[0].tobytes()
    backwards = reduction_order("reversed", 100, FORMATS[form].bytes, 5)
    assert evaluate_order(backwards, arrays).tobytes() == all_reduce(arrays[::-1])[0].tobytes()


def test_the_orders_of_a_small_world_read_as_expected() -> None:
    assert {name: show(reduction_order(name, 3, 4, 3)).splitlines() for name in ORDERS} == {
        "rank": ["[0,3) ((r0+r1)+r2)"],
        "reversed": ["[0,3) ((r2+r1)+r0)"],
        "binary tree": ["[0,3) ((r0+r1)+r2)"],
        "ring": ["[0,1) ((r0+r1)+r2)", "[1,2) ((r1+r2)+r0)", "[2,3) ((r2+r0)+r1)"],
        "ring reduce-scatter": ["[0,1) ((r1+r2)+r0)", "[1,2) ((r2+r0)+r1)", "[2,3) ((r0+r1)+r2)"],
        "gloo": ["[0,2) ((r2+r1)+r0)", "[2,3) ((r0+r2)+r1)"],
    }
    assert show_tree(binary_tree(6)) == "((r0+((r1+r3)+r4))+(r2+r5))"


@given(st.sampled_from(ORDERS), st.integers(0, 200), st.sampled_from([2, 4, 8]), st.integers(1, 10))
@examples(150)
def test_every_order_takes_every_rank_once_for_every_element_and_is_json(
    name: str, elements: int, element_bytes: int, world_size: int
) -> None:
    order = reduction_order(name, elements, element_bytes, world_size)
    check_order(order, elements, world_size)
    covered = [element for lo, hi, _ in order for element in range(lo, hi)]
    assert covered == list(range(elements))
    assert all(sorted(leaves(tree)) == list(range(world_size)) for _, _, tree in order)
    assert from_json(json.loads(json.dumps(order))) == order


def test_pieces_may_have_trees_of_their_own_and_arrays_any_shape() -> None:
    arrays = [array.reshape(2, 3) for array in floats(3, 6, "float32")]
    order: Order = [(0, 2, ((0, 1), 2)), (2, 3, ((2, 1), 0)), (3, 6, (0, (1, 2)))]
    flat = [array.reshape(-1) for array in arrays]
    pieces = [evaluate(tree, [array[lo:hi] for array in flat]) for lo, hi, tree in order]
    result = evaluate_order(order, arrays)
    assert result.shape == (2, 3)
    assert result.tobytes() == np.concatenate(pieces).tobytes()
    assert not any(np.shares_memory(result, array) for array in arrays)


@given(binary_trees(), forms, st.integers(0, 2**32))
@examples(80)
def test_the_canonical_form_gives_the_same_bits(tree: Tree, form: str, seed: int) -> None:
    arrays = floats(len(leaves(tree)), 20, form, seed)
    assert evaluate(canonical(tree), arrays).tobytes() == evaluate(tree, arrays).tobytes()
    assert canonical(canonical(tree)) == canonical(tree)


def test_the_canonical_form_forgets_what_commutes_and_nothing_else() -> None:
    assert canonical((2, (0, 1))) == canonical(((1, 0), 2)) == ((0, 1), 2)
    assert canonical(((2, 3), (1, 0))) == ((0, 1), (2, 3)) != canonical(((1, 2), (0, 3)))
    assert canonical_order([(0, 2, (0, 1)), (2, 5, (1, 0))]) == [(0, 5, (0, 1))]


def test_two_ranks_meet_above_the_leaves_of_their_least_common_node() -> None:
    assert leaves_where_they_meet(((0, 1), (2, 3))).tolist() == [[1, 2, 4, 4], [2, 1, 4, 4], [4, 4, 1, 2], [4, 4, 2, 1]]


@given(binary_trees(), forms)
@examples(100)
def test_any_tree_is_revealed_from_sums_alone(tree: Tree, form: str) -> None:
    world_size, calls = len(leaves(tree)), []

    def call(arrays: list[Array]) -> Array:
        calls.append(arrays)
        return evaluate(tree, arrays)

    assert reveal(call, 2, world_size, form) == [(0, 2, canonical(tree))]
    assert len(calls) == world_size * (world_size - 1) // 2 + 1


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ORDERS)
def test_every_named_order_is_revealed_for_every_element(name: str, form: str) -> None:
    for elements, world_size in ((1, 3), (40, 8), (13, 4), (3, 5), (2, 1)):
        order = reduction_order(name, elements, FORMATS[form].bytes, world_size)
        revealed = reveal(partial(evaluate_order, order), elements, world_size, form)
        assert revealed == canonical_order(order)


@pytest.mark.parametrize(
    ("form", "accumulator"), [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64")]
)
@pytest.mark.parametrize("world_size", [3, 8, 34])
def test_a_wide_accumulator_does_not_hide_the_tree(form: str, accumulator: str, world_size: int) -> None:
    for tree in chain(range(world_size)), binary_tree(world_size):
        revealed = reveal(partial(evaluate, tree, accumulator=accumulator), 1, world_size, form)
        assert revealed == [(0, 1, canonical(tree))]


def test_terms_that_are_added_all_at_once_are_revealed_as_one_node() -> None:
    def fused(*terms: Array) -> Array:
        """As hardware does: all terms are aligned to the largest, and what falls off is lost."""
        kept = np.abs(terms) * 2.0**30 > np.max(np.abs(terms), axis=0)
        return np.asarray(np.where(kept, terms, 0).sum(axis=0))

    revealed = reveal(lambda x: fused(fused(x[3], x[1], x[0]), x[2], x[4]).astype(np.float32), 1, 5, "float32")
    assert show(revealed) == "[0,1) ((r0+r1+r3)+r2+r4)"
    with pytest.raises(ValueError, match=r"\(\(r0\+r1\+r3\)\+r2\+r4\) adds 3 parts at once"):
        evaluate(revealed[0][2], floats(5, 1, "float32"))


def changed_sum(changed: Callable[[list[Array]], Array], at: tuple[int, ...]) -> Callable[[list[Array]], Array]:
    """A sum in rank order of what ``changed`` makes of the inputs, at the elements ``at`` (everywhere without)."""

    def call(arrays: list[Array]) -> Array:
        result = evaluate(chain(range(len(arrays))), arrays)
        for element in at or range(result.size):
            result[element] = changed(arrays)[element]
        return result

    return call


@pytest.mark.parametrize(
    "changed",
    [
        lambda x: x[0] + x[1] + x[2],
        lambda x: x[0] + x[1] + x[2] + x[3] + x[3],
        lambda x: x[0] + x[1] + x[1] + x[3],
        lambda x: x[0] + x[0] + x[2] + x[2],
        lambda x: (x[0] + x[1] + x[2] + x[3]) / np.float32(4),
        lambda x: (x[0] + x[1] + x[2] + x[3]) * np.float32(2),
        lambda x: x[2] * np.float32(4),
        lambda x: x[0] + x[1] + x[2] + np.float32(2.0**-126),
        lambda x: np.maximum(np.maximum(x[0], x[1]), np.maximum(x[2], x[3])),
        lambda x: np.full_like(x[0], 2.0**-124),
        lambda x: (x[0] + x[1]) - (x[2] + x[3]),
        lambda x: np.full_like(x[0], np.nan),
    ],
)
@pytest.mark.parametrize("at", [(), (2,)])
def test_what_is_not_a_sum_once_per_rank_is_called_that(
    changed: Callable[[list[Array]], Array], at: tuple[int, ...]
) -> None:
    first = 2 if at else 0
    with pytest.raises(ValueError, match=f"element {first}: .*not a sum once per rank"):
        reveal(changed_sum(changed, at), 3, 4, "float32")


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_two_ranks_scaled_are_not_a_sum_once_per_rank(scale: float) -> None:
    with pytest.raises(ValueError, match=r"element 0: 2 ones add up to .*not a sum once per rank"):
        reveal(lambda x: (x[0] + x[1]) * np.float32(scale), 1, 2, "float32")


def test_an_order_that_changes_from_call_to_call_is_called_no_order() -> None:
    def unsteady(arrays: list[Array]) -> Array:
        masked = [rank for rank, array in enumerate(arrays) if abs(array[0]) > 1]
        return evaluate(chain([1, 2, 0, 3] if masked == [1, 2] else [0, 1, 2, 3]), arrays)

    with pytest.raises(ValueError, match=r"element 0: .* \[3.0, 2.0, 1.0, 4.0\].* fits no tree"):
        reveal(unsteady, 1, 4, "float32")


def test_formats_refuse_more_ranks_than_their_masks_can_tell_apart() -> None:
    for form, most in (("float16", 34), ("bfloat16", 256)):
        with pytest.raises(ValueError, match=f"{form} cannot reveal {most + 1} ranks: .* up to {most}"):
            reveal(lambda arrays: arrays[0], 1, most + 1, form)
    # 32 ones, all that 34 ranks leave, are still swallowed in float32; 33 would not be.
    big, one = np.float32(1.5 * 2.0**15), np.float32(2.0**-14)
    assert big + 32 * one == big == -(-big + 32 * one)
    assert big + 33 * one != big


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: reduction_order("tree", 3, 4, 2), "unknown order 'tree'"),
        (lambda: reduction_order("rank", 3, 4, 0), "3 elements on 0 ranks"),
        (lambda: reduction_order("gloo", 3, 3, 2), "3 bytes per element"),
        (lambda: check_tree((0, 2), 2), r"\(r0\+r2\) must have each of the ranks"),
        (lambda: check_tree((0, 0), 2), r"\(r0\+r0\) must have each of the ranks 0..1 exactly once"),
        (lambda: check_tree(((0,), 1), 2), r"\(r0\) adds 1 parts"),
        (lambda: check_tree(((), 0, 1), 2), r"\(\) adds 0 parts"),
        (lambda: check_order([(0, 2, (0, 1)), (3, 4, (0, 1))], 4, 2), r"\[0,2\) \[3,4\) must cover \[0,4\)"),
        (lambda: check_order([(0, 2, (0, 1)), (1, 4, (0, 1))], 4, 2), r"\[0,2\) \[1,4\)"),
        (lambda: check_order([(0, 2, (0, 1))], 4, 2), r"\[0,2\) must cover \[0,4\)"),
        (lambda: check_order([(0, 0, (0, 1)), (0, 4, (0, 1))], 4, 2), r"\[0,0\) \[0,4\)"),
        (lambda: check_order([], 4, 2), r"no pieces must cover \[0,4\)"),
        (lambda: check_order([(0, 4, (0, 0))], 4, 2), r"\(r0\+r0\)"),
        (lambda: from_json([[0, 4, [0, "1"]]]), "'1' is no part of a tree"),
        (lambda: from_json(7), "7 is no order"),
        (lambda: from_json([[0, 4]]), r"\[\[0, 4\]\] is no order"),
        (lambda: from_json([[0, 4.5, 0]]), r"\[\[0, 4.5, 0\]\] is no order"),
        (lambda: evaluate((0, 1), [np.zeros(2)]), r"\(r0\+r1\)"),
        (lambda: evaluate((0, 1), [np.zeros(2), np.zeros(2)], "average"), "says nothing about averages"),
        (lambda: evaluate((0, 1), [np.zeros(2), np.zeros(2)], accumulator="float8"), "unknown format 'float8'"),
        (lambda: evaluate_order([(0, 1, (0, 1))], [np.zeros(2), np.zeros(2)]), r"\[0,1\) must cover \[0,2\)"),
        (lambda: reveal(lambda arrays: arrays[0][:1], 2, 1, "float32"), r"returned shape \(1,\)"),
        (lambda: reveal(lambda arrays: arrays[0], 2, 1, "int8"), "unknown format 'int8'"),
    ],
)
def test_bad_input_is_refused_with_the_value_in_the_message(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
