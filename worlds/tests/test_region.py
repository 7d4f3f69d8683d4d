"""Which tensors share memory, against bytes that are written through the one and looked at through the other."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worlds.sim.region import Memory, regions

BYTES = 4 * (3 * 2 * 3 + 5 + 1)


@st.composite
def views(draw: st.DrawFn) -> tuple[int, list[int], list[int], int]:
    """The width of an element in bytes, and lengths, strides and offset of a tensor."""
    width = draw(st.sampled_from([1, 2, 4]))
    lengths = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = [draw(st.integers(0, 3)) for _ in lengths]
    return width, lengths, strides, draw(st.integers(0, 5))


def view(of: torch.Tensor, how: tuple[int, list[int], list[int], int]) -> torch.Tensor:
    width, lengths, strides, offset = how
    return of.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[width]).as_strided(lengths, strides, offset)


@settings(max_examples=400, deadline=None)
@given(views(), views())
def test_two_tensors_overlap_where_bytes_written_through_one_are_seen_through_the_other(
    one: tuple[int, list[int], list[int], int], other: tuple[int, list[int], list[int], int]
) -> None:
    memory = torch.zeros(BYTES, dtype=torch.uint8)
    wrote, seen = view(memory, one), view(memory, other)
    here, there = regions([wrote]), regions([seen])
    assert len(here) == bool(wrote.numel())
    assert len(there) == bool(seen.numel())
    for place in itertools.product(*map(range, wrote.shape)):
        wrote[place].fill_(255 if wrote.dtype == torch.uint8 else -1)
    shared = bool(seen.any())
    overlap = any(mine.overlaps(yours) for mine in here for yours in there)
    assert overlap == shared == any(yours.overlaps(mine) for mine in here for yours in there)


def test_tensors_of_two_storages_share_nothing() -> None:
    (one, other) = regions([torch.zeros(4), torch.zeros(4)])
    assert not one.overlaps(other)
    assert one.overlaps(one)


def test_what_has_no_strides_has_no_region() -> None:
    assert regions([torch.zeros(2, 2).to_sparse(), torch.zeros(0)]) == []


def test_memory_that_is_held_gives_the_tensor_again() -> None:
    base = torch.arange(12.0)
    memory = Memory(base[2:10].view(2, 4).t())
    assert memory.held()
    assert torch.equal(memory.tensor(), base[2:10].view(2, 4).t())
    assert memory.tensor().data_ptr() == base[2:].data_ptr()
    del base
    assert not memory.held()
    assert memory.tensor().shape == (4, 2)
