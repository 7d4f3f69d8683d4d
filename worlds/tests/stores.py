"""What ranks run in the tests of stores."""

import threading
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

Result = Mapping[str, Any]


def keeping_in_the_store(payload: str, rank: int, world_size: int) -> Result:
    """The last rank, whose turn comes last on sim, does something first, and the others wait for it, by each way."""
    store, last = c10d._get_default_store(), world_size - 1
    if rank != last:
        store.wait(["begun"])
        found = [store.get("begun"), *store.multi_get(["one", "two"])]
        store.set("asked", "")
        while not store.check(["polled"]):  # nor will it be before this rank gives way
            pass
    else:
        found = [b"yes", b"1", b"2"]
        for name, value in (("begun", "yes"), ("one", "1"), ("two", "2")):
            store.set(name, value)
        dist.all_reduce(torch.ones(1), group=dist.new_group([last], use_local_synchronization=True))
        store.wait(["asked"] if last else [])
        store.set("polled", "")
    store.add("done", 1)
    while store.add("done", 0) < world_size:
        pass
    swaps = [store.compare_set(f"{rank}", *each) for each in (("other", "a"), ("", "b"), ("b", "c"), ("b", "d"))]
    store.append(f"{rank}", "!")
    return {"found": found, "swaps": swaps, "appended": store.get(f"{rank}"), "deleted": store.delete_key(f"{rank}")}


def keeping_from_a_thread(payload: str, rank: int, world_size: int) -> Result:
    """Not the rank's own."""
    store = c10d._get_default_store()
    thread = threading.Thread(target=lambda: store.set("heart", "beats"), name="heart")
    thread.start()
    thread.join()
    return {"kept": store.get("heart")}


def keeping_in_a_file(payload: str, rank: int, world_size: int) -> Result:
    """A store that the ranks make themselves, in a file that the payload names; each waits for the one after it."""
    store: Any = dist.PrefixStore("mine", dist.FileStore(payload, world_size))
    after = str((rank + 1) % world_size)
    if rank:  # the last waits for the first
        store.wait([after])
    store.set(str(rank), f"of {rank}")
    return {"after": store.get(after)}


def keeping_at_a_port(payload: str, rank: int, world_size: int) -> Result:
    """In a store of torch's that the rank of the payload's first number keeps, at the port of its second.

    Each waits for all others: when it makes the store, and for what they set.
    """
    keeper, port = map(int, payload.split())
    store, keys = dist.TCPStore("localhost", port, world_size, rank == keeper), list(map(str, range(world_size)))
    store.set(str(rank), f"of {rank}")
    store.wait(keys)
    found = store.multi_get(keys)
    dist.barrier()  # the keeper must not go before all have read
    return {"found": found}


def waiting_for_a_keeper(payload: str, rank: int, world_size: int) -> Result:
    """Nobody keeps a store at the payload's port."""
    dist.TCPStore("localhost", int(payload), world_size)
    return {}


def waiting_for_others_at_a_port(payload: str, rank: int, world_size: int) -> Result:
    """The first rank keeps a store at the payload's port, and nobody comes."""
    if not rank:
        dist.TCPStore("localhost", int(payload), world_size, True)
    dist.barrier()
    return {}


def waiting_in_vain_in_a_file(payload: str, rank: int, world_size: int) -> Result:
    """For what nobody sets in a file that the payload names."""
    return {"never": dist.FileStore(payload, world_size).get("never")}


def waiting_in_vain(payload: str, rank: int, world_size: int) -> Result:
    """For a key that nobody sets."""
    if rank == 1:
        c10d._get_default_store().wait(["never"])
    dist.all_reduce(torch.ones(1))
    return {}
