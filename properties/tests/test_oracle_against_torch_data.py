"""Samplers, layouts and bucket assignments of the oracle against torch's own, without any communication.

Where torch asks for a process group, it gets its fake one, which answers every collective at once with nothing.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DistributedSampler

from lockstep.oracle.overlap import bucket_ends
from lockstep.oracle.sampler import epoch_order, rank_indices, samples_per_rank
from lockstep.oracle.shards import chunked, greedy
from lockstep.oracle.tests.examples import examples

worlds = st.integers(1, 9)


@contextlib.contextmanager
def fake_group(rank, world_size):
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@examples(200)
@given(st.integers(0, 40), worlds, st.booleans(), st.booleans(), st.integers(0, 5), st.integers(0, 5))
def test_every_rank_gets_the_indices_of_torchs_sampler(length, world_size, shuffle, drop_last, seed, epoch):
    def permutation(salt):
        return torch.randperm(length, generator=torch.Generator().manual_seed(salt)).tolist()

    order = epoch_order(length, epoch, shuffle, permutation, seed)
    for rank in range(world_size):
        sampler = DistributedSampler(
            range(length), num_replicas=world_size, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        assert rank_indices(order, world_size, rank, drop_last) == tuple(sampler)
        assert samples_per_rank(length, world_size, drop_last) == len(sampler)


@examples(200)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), worlds)
def test_chunked_layouts_are_those_of_torch_chunk(shape, world_size):
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    pieces = [piece.reshape(-1).tolist() for piece in torch.chunk(tensor, world_size)]
    pieces += [[]] * (world_size - len(pieces))
    layout = chunked({"p": tuple(shape)}, world_size)
    assert [[i for _, start, stop in ranges for i in range(start, stop)] for ranges in layout.owned] == pieces


@pytest.mark.parametrize("world_size", [1, 2, 4, 5])
def test_chunked_layouts_are_what_fully_shard_holds(world_size):
    shapes = {"weight": (5, 3), "bias": (5,)}
    layout = chunked(shapes, world_size)
    for rank in range(world_size):
        with fake_group(rank, world_size):
            module = torch.nn.Linear(3, 5)
            fully_shard(module, mesh=init_device_mesh("cpu", (world_size,)))
            optimizer = torch.optim.Adam(module.parameters())
            module(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            shards = {name: parameter.to_local() for name, parameter in module.named_parameters()}
            gradients = {parameter.grad.to_local().untyped_storage() for parameter in module.parameters()}
            moments = [optimizer.state[parameter]["exp_avg"].to_local() for parameter in module.parameters()]
        owned = dict.fromkeys(shapes, 0) | {name: stop - start for name, start, stop in layout.owned[rank]}
        assert {name: shard.numel() for name, shard in shards.items()} == owned
        assert sum(shard.untyped_storage().nbytes() for shard in shards.values()) == 4 * layout.padded[rank]
        assert {storage.data_ptr(): storage.nbytes() for storage in gradients}.popitem()[1] == 4 * layout.padded[rank]
        assert sum(moment.untyped_storage().nbytes() for moment in moments) == 4 * layout.state[rank]


@examples(50)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3), worlds)
def test_greedy_layouts_are_those_of_the_zero_redundancy_optimizer(groups, world_size):
    shapes = [{f"{i}.{j}": (size,) for j, size in enumerate(sizes)} for i, sizes in enumerate(groups)]
    tensors = {name: torch.nn.Parameter(torch.zeros(shape)) for group in shapes for name, shape in group.items()}
    names = {id(tensor): name for name, tensor in tensors.items()}
    with fake_group(0, world_size):
        optimizer = ZeroRedundancyOptimizer(
            [{"params": [tensors[name] for name in group]} for group in shapes], torch.optim.SGD, lr=1.0
        )
        parts = [
            [names[id(tensor)] for group in part for tensor in group["params"]]
            for part in optimizer._partition_parameters()
        ]
    assert [[name for name, _, _ in ranges] for ranges in greedy(shapes, world_size).owned] == parts


@examples(100)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 80))
def test_buckets_close_where_torch_ddp_closes_them(sizes, cap):
    buckets, _ = dist._compute_bucket_assignment_by_size(
        [torch.zeros(size) for size in sizes], [cap], [False] * len(sizes)
    )
    assert [bucket[-1] + 1 for bucket in buckets] == bucket_ends([4 * size for size in sizes], cap)
