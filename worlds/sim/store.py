"""The store in which simulated ranks find each other, and in which programs may keep values.

A rank that waits for a key passes the baton, so that another rank can set it.
"""

import contextlib
import socket
from _thread import get_ident
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lockstep.worlds.sim.meeting import Run, current


class RankStore(dist.Store):
    """One rank's access to the store of a run. Time-outs are ignored: a key that nobody sets is a deadlock."""

    def __init__(self, run: Run, rank: int) -> None:
        super().__init__()
        self._run, self._rank, self._thread = run, rank, get_ident()

    def set(self, key: str, value: bytes | str) -> None:
        """Sets a key, and lets those go on who wait for one."""
        self._kept(f"sets key {key!r}")[key] = value if isinstance(value, bytes) else value.encode()
        self._run.baton.wake(self._run.awaiting)
        self._run.awaiting.clear()

    def get(self, key: str) -> bytes:
        """The value of a key, when there is one."""
        self.wait([key])
        return self._run.kept[key]

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        """Blocks until all of these keys are set."""
        kept = self._kept(f"waits for {_told(keys)}")
        while missing := [key for key in keys if key not in kept]:
            self._run.awaiting.append(self._rank)
            self._run.block(self._rank, f"{_told(missing)} of the store")

    def check(self, keys: Sequence[str]) -> bool:
        """True if all of these keys are set. If not, other ranks run first, so that polling ends."""
        kept = self._kept(f"asks for {_told(keys)}")
        if not all(key in kept for key in keys):
            self._run.poll(self._rank, f"{_told(keys)} of the store")
        return all(key in kept for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, 0 at first. Who adds 0 looks at it, as in `check`."""
        kept = self._kept(f"adds to key {key!r}")
        if not amount:
            self._run.poll(self._rank, f"{_told([key])} of the store")
        total = int(kept.get(key, b"0")) + amount
        if amount or key not in kept:
            self.set(key, str(total))
        return total

    def append(self, key: str, value: bytes | str) -> None:
        """Puts a value behind what a key has."""
        self.set(key, self._run.kept.get(key, b"") + (value if isinstance(value, bytes) else value.encode()))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets a key that has the expected value, or none where none is expected. Returns the value it then has."""
        expected, desired = (each if isinstance(each, bytes) else each.encode() for each in (expected, desired))
        if key not in self._run.kept and expected:
            return expected
        if self._run.kept.get(key, b"") == expected:
            self.set(key, desired)
        return self._run.kept[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, when all are set."""
        self.wait(keys)
        return [self._run.kept[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Sets several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def delete_key(self, key: str) -> bool:
        """Delete a key. True if there was such a key."""
        return self._kept(f"deletes key {key!r}").pop(key, None) is not None

    def num_keys(self) -> int:
        """The number of keys that are set."""
        return len(self._kept("counts keys"))

    def has_extended_api(self) -> bool:
        """True: there are `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> "RankStore":
        """This one."""
        return self

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815, what C++ calls them

    def _kept(self, does: str) -> dict[str, bytes]:
        if get_ident() != self._thread:
            raise self._run.foreign_thread(self._rank, f"{does} of the store")
        return self._run.kept


@cache
def pass_the_baton_in_torchs_stores() -> None:
    """Once for this process: who waits in a store of torch's that ranks have made themselves, or for those who are to
    make it too, lets other ranks run.
    """
    get, wait, multi_get, connect = dist.Store.get, dist.Store.wait, dist.Store.multi_get, dist.TCPStore.__init__

    def get_in_turn(store: Any, key: str) -> bytes:
        _let_others_set(store, [key])
        return get(store, key)

    def wait_in_turn(store: Any, keys: Sequence[str], *timeout: Any) -> None:
        _let_others_set(store, keys)
        wait(store, keys, *timeout)

    def multi_get_in_turn(store: Any, keys: Sequence[str]) -> list[bytes]:
        _let_others_set(store, keys)
        return multi_get(store, keys)

    def connect_in_turn(
        store: Any,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = c10d.default_pg_timeout,
        wait_for_workers: bool = True,
        *rest: Any,
        **named: Any,
    ) -> None:
        ours, where = hasattr(current, "run"), f"a TCPStore at {host_name}:{port}"
        while ours and not (is_master or _listens(host_name, port)):
            current.run.poll(current.rank, where)
        connect(store, host_name, port, world_size, is_master, timeout, wait_for_workers and not ours, *rest, **named)
        if ours and wait_for_workers and world_size is not None:
            there = store.add("init/", 1)  # as C++ counts them
            while is_master and there < world_size:
                current.run.poll(current.rank, f"the {world_size - there} that {where} waits for")
                there = store.add("init/", 0)

    dist.Store.get, dist.Store.wait, dist.Store.multi_get = get_in_turn, wait_in_turn, multi_get_in_turn
    dist.TCPStore.__init__ = connect_in_turn


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port)):
        return True
    return False


def _let_others_set(store: Any, keys: Sequence[str]) -> None:
    beneath = store
    while isinstance(beneath, dist.PrefixStore):
        beneath = beneath.underlying_store
    if hasattr(current, "run") and not isinstance(beneath, RankStore):
        while not store.check(keys):
            current.run.poll(current.rank, f"{_told(keys)} of a {type(beneath).__name__}")


def _told(keys: Sequence[str]) -> str:
    return f"key{'s' * (len(keys) > 1)} {', '.join(map(repr, keys))}"
