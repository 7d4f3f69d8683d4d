"""Which tensors share memory, against bytes that are written through the one and looked at through the other."""

import itertools
import random

import torch

from lockstep.worlds.sim.region import Memory, regions

PAIRS = 2000
DTYPES = {torch.uint8: 255, torch.int16: -1, torch.int32: -1}  # with the number whose bits are all set
BYTES = 4 * (3 * 2 * 3 + 5 + 1)


def view(of: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """A tensor of any dtype, lengths, strides and offset in this memory."""
    lengths = [chance.randint(0 if chance.random() < 0.1 else 1, 3) for _ in range(chance.randint(0, 3))]
    strides = [chance.randint(0, 3) for _ in lengths]
    return of.view(chance.choice([*DTYPES])).as_strided(lengths, strides, chance.randint(0, 5))


def test_two_tensors_overlap_where_bytes_written_through_one_are_seen_through_the_other() -> None:
    chance, seen_both = random.Random(0), set()
    for _ in range(PAIRS):
        memory = torch.zeros(BYTES, dtype=torch.uint8)
        wrote, seen = view(memory, chance), view(memory, chance)
        here, there = regions([wrote]), regions([seen])
        assert len(here) == bool(wrote.numel())
        assert len(there) == bool(seen.numel())
        for place in itertools.product(*map(range, wrote.shape)):
            wrote[place].fill_(DTYPES[wrote.dtype])
        shared = bool(seen.any())
        seen_both.add(shared)
        how = (wrote.dtype, wrote.shape, wrote.stride(), seen.dtype, seen.shape, seen.stride())
        assert any(mine.overlaps(yours) for mine in here for yours in there) == shared, how
        assert any(yours.overlaps(mine) for mine in here for yours in there) == shared, how
    assert seen_both == {False, True}


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
