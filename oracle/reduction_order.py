"""The order in which a backend adds the ranks' values, as plain data: stated, evaluated bit for bit, or revealed.

A *tree* is a rank, or a tuple of the trees that one addition combines: ``((2, 1), 0)`` is (x[2] + x[1]) + x[0]. An
*order* is a list of ``(lo, hi, tree)``: elements lo <= i < hi are added by that tree. `json.dumps` takes an order as
it is, and `from_json` brings it back.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, combinations, pairwise, permutations
from typing import Any, TypeAlias

import numpy as np

from lockstep.oracle import gloo, ring
from lockstep.oracle.collectives import Array, check_alike, check_counts, check_operation, combine
from lockstep.oracle.rounding import format_named, round_array

Tree: TypeAlias = "int | tuple[Tree, ...]"
Order: TypeAlias = list[tuple[int, int, Tree]]

ORDERS = ("rank", "reversed", "binary tree", "ring", "ring reduce-scatter", "gloo")


# Orders stated


def chain(ranks: Iterable[int]) -> Tree:
    """((a + b) + c) + d ... for ranks a, b, c, d ..."""
    first, *others = ranks
    tree: Tree = first
    for rank in others:
        tree = (tree, rank)
    return tree


def binary_tree(world_size: int, rank: int = 0) -> Tree:
    """(x[r] + subtree of 2 r + 1) + subtree of 2 r + 2: the order of `oracle.tree.tree_all_reduce`, from its root 0."""
    tree: Tree = rank
    for child in (2 * rank + 1, 2 * rank + 2):
        if child < world_size:
            tree = (tree, binary_tree(world_size, child))
    return tree


def reduction_order(name: str, elements: int, element_bytes: int, world_size: int) -> Order:
    """The order called ``name``, one of ``ORDERS``, for that many elements of that many bytes. No piece is empty.

        rank                  0, 1, ..., N - 1
        reversed              N - 1, ..., 1, 0
        binary tree           `binary_tree`
        ring                  chunk c of `oracle.ring.chunk_sizes`: c, c + 1, ..., c - 1, as in `ring_all_reduce`
        ring reduce-scatter   the same chunks: c + 1, c + 2, ..., c, as in `ring_reduce_scatter`
        gloo                  chunk c of `oracle.gloo.chunk_bounds`: c - 1, c - 2, ..., c

    Ranks are modulo N. Only gloo's chunks depend on ``element_bytes``.
    """
    check_counts(elements, world_size)
    if name == "gloo":
        bounds = gloo.chunk_bounds(elements, element_bytes, world_size)
        trees = [chain(gloo.accumulation_order(chunk, world_size)) for chunk in range(world_size)]
    elif name in ("ring", "ring reduce-scatter"):
        bounds = list(pairwise(accumulate(ring.chunk_sizes(elements, world_size), initial=0)))
        late = name == "ring reduce-scatter"
        trees = [chain((chunk + hop + late) % world_size for hop in range(world_size)) for chunk in range(world_size)]
    else:
        whole = {
            "rank": chain(range(world_size)),
            "reversed": chain(reversed(range(world_size))),
            "binary tree": binary_tree(world_size),
        }
        if name not in whole:
            raise ValueError(f"unknown order {name!r}: it must be one of {', '.join(ORDERS)}")
        bounds, trees = [(0, elements)], [whole[name]]
    return [(lo, hi, tree) for (lo, hi), tree in zip(bounds, trees, strict=True) if lo < hi]


def leaves(tree: Tree) -> list[int]:
    """The ranks of a tree, from left to right."""
    return [tree] if isinstance(tree, int) else [rank for part in tree for rank in leaves(part)]


def check_tree(tree: Tree, world_size: int) -> None:
    """ValueError unless every rank of the world is a leaf exactly once, and every node adds at least two parts."""
    if sorted(leaves(tree)) != list(range(world_size)):
        raise ValueError(f"{show_tree(tree)} must have each of the ranks 0..{world_size - 1} exactly once")
    nodes = [tree]
    for node in nodes:
        if isinstance(node, tuple):
            if len(node) < 2:
                raise ValueError(f"{show_tree(node)} adds {len(node)} parts: a node must add at least two")
            nodes.extend(node)


def check_order(order: Order, elements: int, world_size: int) -> None:
    """ValueError unless the pieces, in turn, cover the elements 0..n-1 once, each with a valid tree."""
    ends = [0, *(hi for _, hi, _ in order)]
    if [lo for lo, _, _ in order] != ends[:-1] or ends[-1] != elements or any(lo >= hi for lo, hi, _ in order):
        pieces = " ".join(f"[{lo},{hi})" for lo, hi, _ in order) or "no pieces"
        raise ValueError(f"{pieces} must cover [0,{elements}) without gap, overlap or empty piece")
    for _, _, tree in order:
        check_tree(tree, world_size)


def from_json(data: Any) -> Order:
    """An order again from what `json.loads` makes of it, where every tuple has become a list."""

    def tree(part: Any) -> Tree:
        if isinstance(part, list | tuple):
            return tuple(tree(child) for child in part)
        if type(part) is not int:
            raise ValueError(f"{part!r} is no part of a tree: it must be a rank or a list of parts")
        return part

    if not isinstance(data, list) or any(not isinstance(piece, list | tuple) or len(piece) != 3 for piece in data):
        raise ValueError(f"{data!r} is no order: it must be a list of [lo, hi, tree]")
    if any(type(bound) is not int for lo, hi, _ in data for bound in (lo, hi)):
        raise ValueError(f"{data!r} is no order: lo and hi must be integers")
    return [(lo, hi, tree(part)) for lo, hi, part in data]


# Orders evaluated


def evaluate(tree: Tree, arrays: Sequence[Array], op: str = "sum", accumulator: str | None = None) -> Array:
    """The value of the tree at ``arrays``, one for each rank, all in the dtype on the wire.

        accumulator None        RN_wire(left + right) at every node: every hop rounds to the wire (rings)
        accumulator a format    RN_wire(sum in the accumulator's format): every node rounds to the accumulator, and the
                                result is rounded to the wire once (switches and kernels that add in float32)

    ``op`` may also be product, min or max. An average is the sum, divided as the backend divides. A node of more than
    two parts is refused: hardware that adds several terms at once does so in ways of its own.
    """
    check_alike(arrays)
    check_tree(tree, len(arrays))
    check_operation(op)
    if op == "average":
        raise ValueError("an order says nothing about averages: evaluate the sum, then divide as the backend does")
    if accumulator is None:
        return _fold(tree, arrays, op)
    wide = format_named(accumulator).numpy
    return round_array(_fold(tree, [array.astype(wide) for array in arrays], op), arrays[0].dtype.name)


def _fold(tree: Tree, arrays: Sequence[Array], op: str) -> Array:
    if isinstance(tree, int):
        return arrays[tree].copy()
    if len(tree) != 2:
        raise ValueError(f"{show_tree(tree)} adds {len(tree)} parts at once: only nodes of two can be evaluated")
    return combine(op, _fold(tree[0], arrays, op), _fold(tree[1], arrays, op))


def evaluate_order(order: Order, arrays: Sequence[Array], op: str = "sum", accumulator: str | None = None) -> Array:
    """`evaluate` on each piece of the order; elements are counted in row-major order."""
    check_alike(arrays)
    check_order(order, arrays[0].size, len(arrays))
    flat = [array.reshape(-1) for array in arrays]
    result = flat[0].copy()
    for lo, hi, tree in order:
        result[lo:hi] = evaluate(tree, [array[lo:hi] for array in flat], op, accumulator)
    return result.reshape(arrays[0].shape)


# Orders compared and shown


def canonical(tree: Tree) -> Tree:
    """The tree with the parts of every node sorted: larger first, then by least rank. It gives the same bits.

    a + b = b + a in floating point (but for the payload of a NaN), so no measurement can tell the two apart.
    """
    if isinstance(tree, int):
        return tree
    return tuple(sorted(map(canonical, tree), key=lambda part: (-len(leaves(part)), min(leaves(part)))))


def canonical_order(order: Order) -> Order:
    """Canonical trees, and neighbouring pieces of the same tree made one: the form in which orders are compared."""
    merged: Order = []
    for lo, hi, tree in order:
        if merged and merged[-1][2] == canonical(tree):
            lo = merged.pop()[0]
        merged.append((lo, hi, canonical(tree)))
    return merged


def show_tree(tree: Tree) -> str:
    """``((r2+r1)+r0)``."""
    return f"r{tree}" if isinstance(tree, int) else "(" + "+".join(map(show_tree, tree)) + ")"


def show(order: Order) -> str:
    """One line for each piece: ``[0,6) ((r2+r1)+r0)``."""
    return "\n".join(f"[{lo},{hi}) {show_tree(tree)}" for lo, hi, tree in order)


# Orders revealed


def reveal(call: Callable[[list[Array]], Array], elements: int, world_size: int, dtype: str) -> Order:
    """The order of any sum over ranks, for every element at once, from N (N - 1) / 2 + 1 calls. It is canonical.

    ``call`` takes one array of ``elements`` values per rank and returns their sum. For ranks i < j let x[i] = M,
    x[j] = -M and all others 1, M so large that M + (N - 2) = M. Whatever is added to M or -M before the two meet is
    swallowed, whatever comes later counts. So N - result is the number of leaves below the node where i and j meet,
    and these numbers for all pairs determine the tree. (FPRev: Xie et al., USENIX ATC 2025, there for the terms of a
    sum; here a term is a rank.)

    The units are 2**emin for 1 and 1.5 * 2**emax for M. A 16-bit sum may be accumulated in float32 and a float32 one
    in float64. ValueError where the results are not those of a sum that takes every rank once.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return from_sums([call(arrays) for arrays in masks(elements, world_size, dtype)], elements, world_size, dtype)


def masks(elements: int, world_size: int, dtype: str) -> list[list[Array]]:
    """The inputs of `reveal`'s calls, one array per rank for each call, so that a caller can make all calls at once."""
    check_counts(elements, world_size)
    form = format_named(dtype)
    widest = 24 if form.precision < 24 else 53
    limit = min(2**form.precision, 2 + 2 ** (form.emax - form.emin - widest))
    if world_size > limit:
        raise ValueError(f"{dtype} cannot reveal {world_size} ranks: it holds the masks of up to {limit}")
    one, big = 2.0**form.emin, 1.5 * 2.0**form.emax
    masked = [{}, *({i: big, j: -big} for i, j in combinations(range(world_size), 2))]
    return [
        [np.full(elements, each.get(rank, one)).astype(form.numpy) for rank in range(world_size)] for each in masked
    ]


def from_sums(sums: Sequence[Array], elements: int, world_size: int, dtype: str) -> Order:
    """The order, given the sums of `masks`; the rest of `reveal`."""
    for result in sums:
        if result.shape != (elements,):
            raise ValueError(f"the call returned shape {result.shape}: give the sum of the {elements} elements")
    with np.errstate(over="ignore", invalid="ignore"):
        total, *others = (np.asarray(result.astype(np.float64) / 2.0 ** format_named(dtype).emin) for result in sums)
    for element, ones in enumerate(total):
        if ones != world_size:
            raise ValueError(f"element {element}: {world_size} ones add up to {ones}: not a sum once per rank")
    below = np.ones((elements, world_size, world_size))
    for (i, j), count in zip(combinations(range(world_size), 2), others, strict=True):
        below[:, i, j] = below[:, j, i] = world_size - count
    order: Order = []
    for element in range(elements):
        if element and np.array_equal(below[element], below[element - 1]):
            lo, _, tree = order.pop()
        else:
            lo, tree = element, _tree_of(below[element], element)
        order.append((lo, element + 1, tree))
    return order


def _tree_of(below: Array, element: int) -> Tree:
    """The tree in which the node where i and j meet has ``below[i, j]`` leaves; ValueError where there is none."""
    try:
        tree = canonical(_build(below, list(range(len(below)))))
        found = np.array_equal(leaves_where_they_meet(tree), below)
    except ValueError:
        found = False
    if not found:
        raise ValueError(
            f"element {element}: pairs of ranks meet below {below.tolist()} leaves, which fits no tree: "
            "not a sum once per rank, or one that is accumulated in a wider format than the masks allow for"
        )
    return tree


def _build(below: Array, ranks: list[int]) -> Tree:
    """The node above these ranks: two of them are in one part of it where they meet below fewer leaves than it has."""
    if len(ranks) == 1:
        return ranks[0]
    parts: list[list[int]] = []
    for rank in ranks:
        for part in parts:
            if below[part[0], rank] < len(ranks):
                part.append(rank)
                break
        else:
            parts.append([rank])
    if len(parts) == 1:
        raise ValueError(f"no two of the ranks {ranks} meet at their node")
    return tuple(_build(below, part) for part in parts)


def leaves_where_they_meet(tree: Tree) -> Array:
    """Matrix over ranks: the number of leaves below the node where i and j meet; 1 on the diagonal."""
    size = np.ones((len(leaves(tree)), len(leaves(tree))))
    nodes = [tree]
    for node in nodes:
        if isinstance(node, tuple):
            nodes.extend(node)
            for left, right in permutations(map(leaves, node), 2):
                size[np.ix_(left, right)] = len(leaves(node))
    return size
