"""The owners of elements: the layouts by which sharded training cuts parameters, as plain data.

A layout lists, for every rank, ranges of elements of named parameters. Each element has exactly one owner; ranks may
own nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.oracle.checks import check_at_least

Array = NDArray[np.float64]
Shapes = Mapping[str, tuple[int, ...]]


class Range(NamedTuple):
    """Elements start <= i < stop of a parameter, counted in row-major order."""

    parameter: str
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """``owned[r]``: the ranges of rank r, in the order in which its shard holds them.

    ``padded[r]`` counts the elements of rank r's shard of a parameter or gradient, and ``state[r]`` those of its
    optimizer state. Both are at least what r owns; the rest is padding, which belongs to no parameter.
    ValueError where an element has no owner or two, or a count is less than what is owned.
    """

    shapes: Shapes
    owned: tuple[tuple[Range, ...], ...]
    padded: tuple[int, ...]
    state: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.owned:
            raise ValueError("a layout over 0 ranks: give at least 1")
        if not len(self.owned) == len(self.padded) == len(self.state):
            raise ValueError(
                f"owned, padded and state speak of {len(self.owned)}, {len(self.padded)} and {len(self.state)} ranks: "
                "they must agree"
            )
        check_partition(self.shapes, self.owned)
        for rank, count in enumerate(self.counts):
            if min(self.padded[rank], self.state[rank]) < count:
                raise ValueError(
                    f"rank {rank} owns {count} elements but its shard holds {self.padded[rank]} and its optimizer "
                    f"state {self.state[rank]}: neither may be less than {count}"
                )

    @property
    def world_size(self) -> int:
        """N: the number of ranks the parameters are cut among."""
        return len(self.owned)

    @property
    def elements(self) -> int:
        """Psi: all elements, without padding."""
        return sum(numel(shape) for shape in self.shapes.values())

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that each rank owns, without padding."""
        return tuple(sum(stop - start for _, start, stop in ranges) for ranges in self.owned)


def numel(shape: tuple[int, ...]) -> int:
    """Product of the dimensions; 1 for a scalar, whose shape is ()."""
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {shape} has a negative dimension: give sizes of 0 or more")
    return math.prod(shape)


def check_partition(shapes: Shapes, owned: Sequence[Sequence[Range]]) -> None:
    """ValueError unless each element of each parameter lies in exactly one range."""
    pieces: dict[str, list[tuple[int, int, int]]] = {name: [] for name in shapes}
    for rank, ranges in enumerate(owned):
        for name, start, stop in ranges:
            if name not in shapes:
                raise ValueError(f"rank {rank} owns part of {name!r}: the parameters are {', '.join(shapes) or 'none'}")
            if not 0 <= start < stop <= numel(shapes[name]):
                raise ValueError(
                    f"rank {rank} owns [{start}, {stop}) of {name!r}: a range is not empty and lies within "
                    f"[0, {numel(shapes[name])})"
                )
            pieces[name].append((start, stop, rank))
    for name, shape in shapes.items():
        end = 0
        for start, stop, rank in sorted(pieces[name]):
            if start != end:
                fault = f"no owner for element {end}" if start > end else f"a second owner, rank {rank}, for {start}"
                raise ValueError(f"{name!r} has {fault}: each element needs exactly one")
            end = stop
        if end != numel(shape):
            raise ValueError(f"{name!r} has no owner for element {end}: each element needs exactly one")


def flat(shapes: Shapes, world_size: int) -> Layout:
    """All parameters end to end, zeros up to a multiple of N; rank r holds slice r.

    s = ceil(Psi / N); rank r holds flat elements [r s, (r+1) s), padding at the very end. The last ranks may own only
    padding. Optimizer state covers the padding too, since the flat buffer is what the optimizer sees.
    Source: Rajbhandari et al., "ZeRO", 2020, section 5.1 (N equal partitions). FSDP1's FlatParameter is cut this way
    too, but with ``use_orig_params`` it pads between parameters as well. One call per dtype, parameter group or unit;
    `join` puts them together.
    """
    check_at_least(1, world_size=world_size)
    size = -(-sum(numel(shape) for shape in shapes.values()) // world_size)
    owned: list[tuple[Range, ...]] = []
    for rank in range(world_size):
        begin, end = rank * size, (rank + 1) * size
        ranges, offset = [], 0
        for name, shape in shapes.items():
            start, stop = max(begin - offset, 0), min(end - offset, numel(shape))
            if start < stop:
                ranges.append(Range(name, start, stop))
            offset += numel(shape)
        owned.append(tuple(ranges))
    return Layout(shapes, tuple(owned), (size,) * world_size, (size,) * world_size)


def chunked(shapes: Shapes, world_size: int) -> Layout:
    """Each parameter cut along dimension 0, as torch.chunk does: ceil(d0 / N) rows per rank, the last ranks fewer.

    c = ceil(d0 / N); rank r owns rows [r c, (r+1) c) as far as they exist; 5 rows on 4 ranks: 2, 2, 1, 0.
    Every rank's shard of parameter and gradient is padded to c rows, so that collectives move equal shares; optimizer
    state is not (measured: FSDP2 of torch 2.13, storage of each rank's shard). ValueError for a scalar.
    """
    check_at_least(1, world_size=world_size)
    owned: list[list[Range]] = [[] for _ in range(world_size)]
    padded = 0
    for name, shape in shapes.items():
        if not shape:
            raise ValueError(f"{name!r} is a scalar: cutting along dimension 0 needs at least shape (1,)")
        row, rows = numel(shape[1:]), -(-shape[0] // world_size)
        padded += rows * row
        for rank in range(world_size):
            start, stop = min(rank * rows, shape[0]) * row, min((rank + 1) * rows, shape[0]) * row
            if start < stop:
                owned[rank].append(Range(name, start, stop))
    counts = tuple(sum(stop - start for _, start, stop in ranges) for ranges in owned)
    return Layout(shapes, tuple(map(tuple, owned)), (padded,) * world_size, counts)


def greedy(groups: Sequence[Shapes], world_size: int) -> Layout:
    """Whole parameters, largest first, each to the rank that holds least; the lowest rank wins a tie.

    Parameter groups follow one another, each sorted by size on its own (equal sizes keep their order), while the ranks'
    totals carry over. No padding; shares differ in size.
    Source: measured against ZeroRedundancyOptimizer of torch 2.13.
    """
    check_at_least(1, world_size=world_size)
    shapes = merge(groups)
    owned: list[list[Range]] = [[] for _ in range(world_size)]
    totals = [0] * world_size
    for group in groups:
        for name in sorted(group, key=lambda name: -numel(group[name])):
            size, rank = numel(group[name]), totals.index(min(totals))
            totals[rank] += size
            if size:
                owned[rank].append(Range(name, 0, size))
    return Layout(shapes, tuple(map(tuple, owned)), tuple(totals), tuple(totals))


def merge(groups: Sequence[Shapes]) -> dict[str, tuple[int, ...]]:
    """One mapping of several; ValueError where a name occurs in two of them."""
    merged: dict[str, tuple[int, ...]] = {}
    for group in groups:
        for name, shape in group.items():
            if name in merged:
                raise ValueError(f"{name!r} is in two groups: each parameter belongs to one")
            merged[name] = shape
    return merged


def join(layouts: Sequence[Layout]) -> Layout:
    """Several buffers (one per dtype, group or unit) side by side: every rank holds its share of each."""
    sizes = {layout.world_size for layout in layouts}
    if len(sizes) != 1:
        raise ValueError(f"layouts over {sorted(sizes)} ranks: join layouts of one world size")
    ranks = range(sizes.pop())
    return Layout(
        merge([layout.shapes for layout in layouts]),
        tuple(tuple(span for layout in layouts for span in layout.owned[rank]) for rank in ranks),
        tuple(sum(layout.padded[rank] for layout in layouts) for rank in ranks),
        tuple(sum(layout.state[rank] for layout in layouts) for rank in ranks),
    )


def by_layer(layout: Layout, layers: Sequence[Sequence[str]]) -> list[Layout]:
    """Each layer's part of one `flat` or `greedy` layout over the whole model, layers naming their parameters.

    A slice of a flat buffer holds a few layers, so most ranks own nothing of a given layer. The padding at the end of
    the buffer goes with the last layer. (`chunked` treats parameters one by one: call it layer by layer.)
    """
    parts = []
    for index, names in enumerate(layers):
        owned = tuple(tuple(span for span in ranges if span.parameter in names) for ranges in layout.owned)
        counts = tuple(sum(stop - start for _, start, stop in ranges) for ranges in owned)
        spare = [
            layout.padded[rank] - count if index == len(layers) - 1 else 0 for rank, count in enumerate(layout.counts)
        ]
        padded = tuple(count + more for count, more in zip(counts, spare, strict=True))
        parts.append(Layout({name: layout.shapes[name] for name in names}, owned, padded, padded))
    if dict(merge([part.shapes for part in parts])) != dict(layout.shapes):
        raise ValueError(f"layers of {[list(names) for names in layers]}: name each of {list(layout.shapes)} once")
    return parts


def to_shards(layout: Layout, tensors: Mapping[str, Array]) -> list[Array]:
    """shard[r] = the elements that rank r owns, end to end, shape (counts[r],). Padding is left out."""
    check_tensors(layout, tensors)
    flattened = {name: np.asarray(tensor, np.float64).reshape(-1) for name, tensor in tensors.items()}
    nothing = np.zeros(0)
    return [
        np.concatenate([nothing] + [flattened[name][start:stop] for name, start, stop in ranges])
        for ranges in layout.owned
    ]


def from_shards(layout: Layout, shards: Sequence[Array]) -> dict[str, Array]:
    """The inverse of `to_shards`: every parameter whole again, from the shards of all ranks."""
    shapes = [shard.shape for shard in shards]
    if shapes != [(count,) for count in layout.counts]:
        raise ValueError(f"shards of shapes {shapes}: this layout has {[(count,) for count in layout.counts]}")
    flattened = {name: np.zeros(numel(shape)) for name, shape in layout.shapes.items()}
    for shard, ranges in zip(shards, layout.owned, strict=True):
        offset = 0
        for name, start, stop in ranges:
            flattened[name][start:stop] = shard[offset : offset + stop - start]
            offset += stop - start
    return {name: tensor.reshape(layout.shapes[name]) for name, tensor in flattened.items()}


def check_tensors(layout: Layout, tensors: Mapping[str, Array]) -> None:
    """ValueError unless names and shapes are those of the layout."""
    shapes = {name: np.shape(tensor) for name, tensor in tensors.items()}
    if shapes != dict(layout.shapes):
        raise ValueError(f"tensors of shapes {shapes}: this layout has {dict(layout.shapes)}")


def squared_norm(shards: Sequence[Array]) -> Fraction:
    """|g|^2 = sum over ranks of sum g_i^2, exact. Right for shards, where each element has one owner.

    Not for replicated gradients: there every rank's g is the whole gradient and its own sum of squares the answer.
    """
    return sum((Fraction(float(value)) ** 2 for shard in shards for value in shard), Fraction(0))
