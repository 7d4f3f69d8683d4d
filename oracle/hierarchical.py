"""All-reduce on nodes of several ranks, message by message: rings in each node, and rings between the nodes.

Each of the four phases is a ring:

    reduce-scatter in nodes         each rank ends with one chunk of its node's sum
    reduce-scatter between nodes    the ranks of equal place in their nodes sum their chunk, a piece on each
    all-gather between nodes        the same ranks gather the pieces
    all-gather in nodes             each node gathers the chunks

With G ranks per node, a rank sends 1 / G of the tensor's volume between nodes. `oracle.cost.hierarchical_time` has the
time.

Source: Mikami et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash", 2018 (2D-torus all-reduce).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from lockstep.oracle import ring
from lockstep.oracle.checks import check_at_least
from lockstep.oracle.collectives import Array, check_alike, check_counts, finish
from lockstep.oracle.reduction_order import Order, Tree, chain
from lockstep.oracle.ring import Message, Simulation, carry_out, chunk_sizes, cut

BETWEEN = " between nodes"  # how the name of a phase between nodes ends


def count_nodes(world_size: int, node: int) -> int:
    """The number of nodes of ``node`` ranks each. Node k has the ranks k G to k G + G - 1. ValueError for a rest."""
    check_at_least(1, world_size=world_size, node=node)
    if world_size % node:
        raise ValueError(f"{world_size} ranks are not whole nodes of {node}: give a multiple of it")
    return world_size // node


def all_reduce_schedule(elements: int, world_size: int, node: int) -> list[Message]:
    """The messages of the four phases. The tensor has a chunk per rank of a node; a chunk has a piece per node."""
    check_counts(elements, world_size)
    nodes, sizes = count_nodes(world_size, node), chunk_sizes(elements, node)

    def inside(messages: Sequence[Message]) -> list[Message]:
        """The messages of one node, in every node."""
        return _in_turn(
            replace(each, phase=f"{each.phase} in nodes", sender=first + each.sender, receiver=first + each.receiver)
            for each in messages
            for first in range(0, world_size, node)
        )

    def between(ring_of: Callable[[Sequence[int]], list[Message]]) -> list[Message]:
        """The messages of the ring over the nodes, for every place in a node."""
        return _in_turn(
            Message(each.phase + BETWEEN, each.step, sender, receiver, chunk, each.elements, piece=each.chunk)
            for place in range(node)
            for chunk in [_owned(place, node)]
            for each in ring_of(chunk_sizes(sizes[chunk], nodes))
            for sender, receiver in [(each.sender * node + place, each.receiver * node + place)]
        )

    adding, gathering = ring.reduce_scatter_schedule, ring.all_gather_schedule
    return inside(adding(sizes)) + between(adding) + between(gathering) + inside(gathering(sizes))


def hierarchical_all_reduce(arrays: Sequence[Array], node: int, op: str = "sum") -> Simulation:
    """Every rank ends with the reduction over all ranks, in the shape of its array. Any length; whole nodes.

    The average is taken by the owner of a piece, between the two phases between nodes.
    """
    check_alike(arrays)
    ranks = len(arrays)
    nodes, sizes = count_nodes(ranks, node), chunk_sizes(arrays[0].size, node)
    messages = all_reduce_schedule(arrays[0].size, ranks, node)
    within = [each for each in messages if not each.phase.endswith(BETWEEN)]
    between = [replace(each, chunk=each.piece) for each in messages if each.piece is not None]
    held = [cut(array, sizes) for array in arrays]
    carry_out([each for each in within if each.phase.startswith("reduce-scatter")], held, op)
    chunks = [_owned(rank % node, node) for rank in range(ranks)]
    pieces = [cut(mine[chunk], chunk_sizes(sizes[chunk], nodes)) for mine, chunk in zip(held, chunks, strict=True)]
    carry_out([each for each in between if each.phase.startswith("reduce-scatter")], pieces, op)
    for rank, mine in enumerate(pieces):
        owned = _owned(rank // node, nodes)
        mine[owned] = finish(op, mine[owned], ranks)
    carry_out([each for each in between if each.phase.startswith("all-gather")], pieces, None)
    for mine, chunk, reduced in zip(held, chunks, pieces, strict=True):
        mine[chunk] = np.concatenate([reduced[piece] for piece in range(nodes)])
    carry_out([each for each in within if each.phase.startswith("all-gather")], held, None)
    shape = arrays[0].shape
    return Simulation(
        [np.concatenate([mine[chunk] for chunk in range(node)]).reshape(shape) for mine in held], messages
    )


def summation_order(elements: int, world_size: int, node: int) -> Order:
    """The order in which the ranks' values are added, as `oracle.reduction_order` has orders.

    Piece p of chunk c adds the nodes p, p + 1, ..., p - 1, modulo their number; each node adds its ranks of the places
    c, c + 1, ..., c - 1, modulo G, first.
    """
    check_counts(elements, world_size)
    nodes, sizes = count_nodes(world_size, node), chunk_sizes(elements, node)
    order: Order = []
    for chunk, start in enumerate(accumulate(sizes[:-1], initial=0)):
        sums = [chain(first + (chunk + hop) % node for hop in range(node)) for first in range(0, world_size, node)]
        bounds = pairwise(accumulate(chunk_sizes(sizes[chunk], nodes), initial=start))
        for piece, (lo, hi) in enumerate(bounds):
            tree: Tree = sums[piece]
            for hop in range(1, nodes):
                tree = (tree, sums[(piece + hop) % nodes])
            if lo < hi:
                order.append((lo, hi, tree))
    return order


def _owned(place: int, ranks: int) -> int:
    """The chunk that a ring's reduce-scatter leaves complete at this place of the ring."""
    return (place + 1) % ranks


def _in_turn(messages: Iterable[Message]) -> list[Message]:
    return sorted(messages, key=lambda each: (each.step, each.sender))
