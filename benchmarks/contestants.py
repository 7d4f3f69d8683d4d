"""The places where one example can run: Lockstep's worlds, and its peers'. Each contestant returns its time."""

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.testing._internal.distributed import fake_pg, multi_threaded_pg

from lockstep.impls.frameworks.torch_ddp import TorchDDP
from lockstep.worlds import process
from lockstep.worlds.contract import Job, World, resolve
from lockstep.worlds.sim.ranks import Ranks

Contestant = Callable[[Job], float]  # runs an example; returns the seconds that it took


def on_world(world: World) -> Contestant:
    """The whole way to a world of Lockstep's and back, its processes being warm."""

    def timed(job: Job) -> float:
        start = time.perf_counter()
        outcome = world.run(job)
        seconds = time.perf_counter() - start
        for report in outcome:
            if report.error is not None:
                raise RuntimeError(f"{world.name}: {report.error.message}\n{report.error.details}")
        return seconds

    return timed


STANDING_EXAMPLES = 20


def standing(world: World) -> Contestant:
    """On ranks that stand in one group and run the example many times by themselves: no dispatch, no new group."""

    def timed(job: Job) -> float:
        payload = json.dumps({"function": job.function, "payload": job.payload})
        seconds = []
        for report in world.run(Job("lockstep.benchmarks.contestants:run_standing", payload, job.world_size)):
            if report.result is None:
                raise RuntimeError(f"standing ranks: {report.error}")
            seconds.append(report.result["seconds"])
        return max(seconds)

    return timed


def run_standing(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """The seconds that one example takes a standing rank."""
    asked = json.loads(payload)
    function = resolve(asked["function"])
    function(asked["payload"], rank, world_size)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(STANDING_EXAMPLES):
        function(asked["payload"], rank, world_size)
    return {"seconds": (time.perf_counter() - start) / STANDING_EXAMPLES}


def in_child(child: process.Child, clock: str) -> Contestant:
    """Time an example inside a child that runs `serve`, without the way there and back.

    ``clock``: "wall", or "processor", the processor's time for the child, which is all that an example takes that waits
    for nothing and runs one thread at a time; others at work do not lengthen it.
    """

    def timed(job: Job) -> float:
        child.send(job)
        try:
            seconds: float = child.receive()[clock]
        except process.Died as died:
            raise RuntimeError(f"a contestant's process {died}:\n{child.output()}") from None
        return seconds

    return timed


def serve(connection: Connection, run: Callable[[Job], None]) -> None:
    """The loop of such a child."""
    torch.set_num_threads(1)
    while True:
        job = connection.recv()
        start, began = time.perf_counter(), time.process_time()
        run(job)
        connection.send({"wall": time.perf_counter() - start, "processor": time.process_time() - began})


@cache
def _ranks(size: int) -> Ranks:
    return Ranks(size)


def run_simulated(job: Job) -> None:
    """On Lockstep's simulated ranks, as they are run inside the process that has them."""
    for report in _ranks(job.world_size).run(job):
        if report.error is not None:
            raise RuntimeError(f"sim: {report.error.message}\n{report.error.details}")


def run_fake(job: Job) -> None:
    """On torch's fake process group, which does nothing: one rank after the other, without any communication.

    It runs the same Python of the program, of torch.distributed and of DDP as the simulated ranks do, groups made and
    destroyed included. What it is spared is all that makes ranks of them: each collective's copies and arithmetic,
    random numbers and environment of their own, reports of what was called, and what is left behind.
    """
    function = resolve(job.function)
    for rank in range(job.world_size):
        dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=job.world_size)
        function(job.payload, rank, job.world_size)
        dist.destroy_process_group()


class DDPOnFake(TorchDDP):
    """DDP's reducer cannot use what the fake group answers, so a communication hook hands each bucket back as it is.

    The reducer then calls Python once for each bucket, and gets a future from it, as on the simulated world; it copies
    gradients into the bucket where it would divide them on the way.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        # As register_comm_hook does, but without its checks, which would make the fake group look slow.
        dist._register_comm_hook(self.reducer, None, _hand_back)


def _hand_back(_: Any, bucket: Any) -> Any:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def run_threaded(job: Job) -> None:
    """On torch's own simulation of ranks by threads, as its MultiThreadedTestCase does it for every test."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    multi_threaded_pg._install_threaded_pg()
    store, function, errors = dist.HashStore(), resolve(job.function), list[BaseException]()

    def run_rank(rank: int) -> None:
        dist.init_process_group("threaded", store=store, rank=rank, world_size=job.world_size)
        try:
            function(job.payload, rank, job.world_size)
        except BaseException as error:
            errors.append(error)
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)  # wakes the ranks that wait for this one
        finally:
            dist.destroy_process_group()

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(job.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    multi_threaded_pg.ProcessLocalGroup.reset()
    multi_threaded_pg._uninstall_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(False)
    if errors:
        raise errors[0]


def fresh(job: Job) -> float:
    """A new Python process for each rank, which imports torch and joins a gloo group: tests that use mp.spawn."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        start = time.perf_counter()
        torch.multiprocessing.spawn(_fresh_rank, (job, str(Path(folder) / "store")), job.world_size)
        return time.perf_counter() - start


def _fresh_rank(rank: int, job: Job, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=job.world_size)
    resolve(job.function)(job.payload, rank, job.world_size)
    dist.destroy_process_group()
    os._exit(0)  # now and then DDP aborts such a process where Python ends it ("terminate called without ...")
