"""Ranks wait for each other in stores, torch's own of the group and such as they make, on both worlds alike."""

import functools
import socket
from pathlib import Path

from lockstep.worlds.contract import World
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.outcomes import kinds, messages, plain, results, run_of

run = functools.partial(run_of, "stores")


def test_ranks_wait_for_each_other_by_the_store(sim: World, gloo: World) -> None:
    for size in (1, 2, 3):
        here, there = (results(run(each, "keeping_in_the_store", size)) for each in (sim, gloo))
        assert plain(here) == plain(there)
        assert [each["appended"] for each in here] == [b"c!"] * size


def test_a_store_that_another_thread_uses_is_gloos_alone(gloo: World) -> None:
    assert [each["kept"] for each in results(run(gloo, "keeping_from_a_thread", 2))] == [b"beats"] * 2
    sim = SimWorld()
    try:
        outcome = run(sim, "keeping_from_a_thread", 2)
        assert kinds(outcome) == ["not runnable"] * 2
        assert "sets key" in messages(outcome)[0]
        assert "of the store from a thread of the implementation's own (heart)" in messages(outcome)[0]
    finally:
        sim.close()


def test_a_key_that_nobody_sets_is_a_deadlock_that_is_named(sim: World) -> None:
    outcome = run(sim, "waiting_in_vain", 2)
    assert kinds(outcome) == ["deadlock"] * 2
    assert "rank 1 waits for key '0//never' of the store" in messages(outcome)[1]


def test_ranks_may_wait_in_a_store_of_their_own(sim: World, gloo: World, tmp_path: Path) -> None:
    for size in (1, 2, 3):
        for world in (sim, gloo):
            seen = results(run(world, "keeping_in_a_file", size, str(tmp_path / f"{world.name} {size}")))
            assert [each["after"] for each in seen] == [b"of %d" % ((rank + 1) % size) for rank in range(size)]
    outcome = run(sim, "waiting_in_vain_in_a_file", 2, str(tmp_path / "never"))
    assert kinds(outcome) == ["deadlock"] * 2
    assert "rank 1 polls key 'never' of a FileStore" in messages(outcome)[1]


def test_ranks_may_keep_a_store_at_a_port(world: World) -> None:
    for size in (1, 2, 3):
        for keeper in range(size):
            seen = results(run(world, "keeping_at_a_port", size, f"{keeper} {free_port()}"))
            assert [each["found"] for each in seen] == [[b"of %d" % rank for rank in range(size)]] * size


def test_a_store_at_a_port_that_lacks_somebody_is_a_deadlock_that_is_named(sim: World) -> None:
    port = free_port()
    outcome = run(sim, "waiting_for_a_keeper", 2, str(port))
    assert kinds(outcome) == ["deadlock"] * 2
    assert f"rank 1 polls a TCPStore at localhost:{port}" in messages(outcome)[0]
    outcome = run(sim, "waiting_for_others_at_a_port", 3, str(port))
    assert kinds(outcome) == ["deadlock"] * 3
    assert f"rank 0 polls the 2 that a TCPStore at localhost:{port} waits for" in messages(outcome)[1]


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port
