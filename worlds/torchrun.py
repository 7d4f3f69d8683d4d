"""Ranks on the processes of a `torchrun` job, on one host or many: rank 0 drives, every other rank is an agent.

An agent starts and ends, on its host, the process in which a rank runs, and carries messages to and from it. So a rank
that dies or hangs is contained as on one machine. If an agent dies, the job ends, and rank 0 names it. torchrun's own
store tells all agents the address of rank 0, and ranks meet in it.
"""

import contextlib
import datetime
import os
import queue
import secrets
import signal
import socket
import struct
import threading
import time
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, Pipe, answer_challenge, deliver_challenge, wait
from pathlib import Path
from typing import Any

from lockstep.worlds import process
from lockstep.worlds.blame import Progress
from lockstep.worlds.pool import PoolWorld
from lockstep.worlds.serving import Setup, serve

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_JOIN_LIMIT = 300.0  # seconds for all ranks of the job to join
_GREETING = 30  # seconds for whoever connects to say the next thing, until it is known to be a rank of the job
_LOOK = 0.2  # seconds between two looks whether rank 0 has called
_KEY = "lockstep/driver"


class JobLost(KeyboardInterrupt):
    """An agent has gone, and with it a rank. It ends the run as Ctrl-C does, so that no handler catches it."""


def is_agent() -> bool:
    """True if this process is a rank of a torchrun job other than 0."""
    return all(name in os.environ for name in VARIABLES) and os.environ["RANK"] != "0"


def missing_variables() -> list[str]:
    """The variables that torchrun sets and that are missing here."""
    return [name for name in VARIABLES if name not in os.environ]


def ranks_of_this_host() -> int:
    """The number of the job's ranks on this host; all, if the launcher does not tell."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))


def _join() -> Any:
    """The store that all ranks of the job share: torchrun's, or one that rank 0 serves in its place."""
    import torch.distributed as dist

    mine = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = datetime.timedelta(seconds=_JOIN_LIMIT)
    return dist.TCPStore(address, port, is_master=mine, timeout=limit, wait_for_workers=False)


def _wait_at_most(seconds: int, line: Connection) -> None:
    """From now on what is read from a line fails with an OSError when nothing comes for so long; 0: never."""
    with socket.fromfd(line.fileno(), socket.AF_INET, socket.SOCK_STREAM) as its_socket:
        its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


class Agent:
    """Rank 0's end of the line to an agent. A thread sorts what comes: answers of the rank, or answers of the agent."""

    def __init__(self, rank: int, host: str, line: Connection) -> None:
        self.name, self._line = f"rank {rank} on {host}", line
        self.ranks_answers, self._sorted = Pipe(duplex=False)
        self.told: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._sort, daemon=True, name=f"from {self.name}").start()

    def _sort(self) -> None:
        while True:
            try:
                kind, content = self._line.recv()
            except (EOFError, OSError):
                kind, content = "lost", None
            if kind in ("started", "answer", "died", "lost"):
                self._sorted.send((kind, content))
            if kind in ("told", "lost"):
                self.told.put((kind, content))
            if kind == "lost":
                return

    def ask(self, *what: Any) -> None:
        """Sends a request. Raises JobLost."""
        try:
            self._line.send(what)
        except OSError:
            raise self.lost() from None

    def lost(self) -> JobLost:
        """The error to raise when it has gone."""
        return JobLost(f"{self.name} has gone, so this torchrun job ends here")


class RemoteChild(process.Child):
    """A supervised process on another rank's host: a `worlds.process.Child` through its agent."""

    def __init__(self, agent: Agent, setup: Setup) -> None:
        self._agent, self.connection, self.memory = agent, agent.ranks_answers, process.MEMORY
        agent.ask("start", setup)

    def await_start(self) -> None:
        """Returns once the rank's process serves."""
        while True:
            kind, content = self.connection.recv()
            if kind == "lost":
                raise self._agent.lost()
            if kind == "started":  # what comes before is from the process that this one replaces
                if content:
                    raise process.Died(content)
                return

    def send(self, message: Any) -> None:
        """Hands a message over."""
        self._agent.ask("job", message, self.memory)

    def receive(self) -> Any:
        """The process's answer, which must be there. Raises Died where the process ended instead."""
        kind, content = self.connection.recv()
        if kind == "lost":
            raise self._agent.lost()
        if kind == "died":
            raise process.Died(content)
        return content

    def ended(self) -> str:
        """Told with the next answer."""
        return ""

    def watch(self) -> None:
        """The agent does it."""

    def _tell(self, what: str) -> Any:
        self._agent.ask("tell", what)
        kind, content = self._agent.told.get()
        if kind == "lost":
            raise self._agent.lost()
        return content

    def stacks(self) -> str:
        """The stacks of the process's threads."""
        return str(self._tell("stacks"))

    def output(self) -> str:
        """The end of what the process printed."""
        return str(self._tell("output"))

    def queued(self) -> float:
        """The seconds in which its threads were ready to run and did not."""
        return float(self._tell("queued"))

    def off_the_clock(self) -> float:
        """The seconds in which it has imported."""
        return float(self._tell("off_the_clock"))

    def progress(self) -> Progress:
        """The progress that the process noted last."""
        found: Progress = self._tell("progress")
        return found

    def kill(self) -> None:
        """Ends the process and all that it has started; the agent stays."""
        with contextlib.suppress(JobLost):  # then its process has gone as well
            self._agent.ask("kill")


class TorchrunWorld(PoolWorld):
    """See `worlds.contract.World`, and of ``ranks_per_gpu`` `worlds.nccl`. Lives on rank 0; its ranks are the job's."""

    def __init__(self, backend: str = "gloo", device: str = "cpu", limit: float = 60.0, ranks_per_gpu: int = 1) -> None:
        size = int(os.environ["WORLD_SIZE"])
        super().__init__(Setup(backend, device, limit=limit, hosts_apart=ranks_per_gpu > 1), size)
        self.name = "torchrun"
        self._pools = 0
        self._agents: dict[int, Agent] = {}
        self._store = _join()
        key = secrets.token_bytes(16)
        with Listener(("", 0), backlog=size) as listener:
            self._store.set(_KEY, f"{listener.address[1]}:{key.hex()}")
            while len(self._agents) < size - 1:
                line = listener.accept()
                # What has not the key is no agent: on a host of many, somebody tries all ports, and may say nothing.
                with contextlib.suppress(AuthenticationError, EOFError, OSError):
                    _wait_at_most(_GREETING, line)
                    deliver_challenge(line, key)
                    answer_challenge(line, key)
                    rank, host = line.recv()
                    _wait_at_most(0, line)
                    self._agents[rank] = Agent(rank, host, line)

    def new_store(self, folder: Path) -> str:
        """torchrun's store, under a name of this pool's own."""
        self._pools += 1
        return f"tcp:{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}:lockstep-pool-{self._pools}"

    def prepare(self, size: int) -> None:
        """Nothing: one process is started here, and each of the others by an agent."""

    def start(self, rank: int, setup: Setup) -> process.Child:
        """Rank 0's process is started here, any other by its agent."""
        if rank == 0:
            return process.Child(serve, replace(setup, local_rank=int(os.environ["LOCAL_RANK"])))
        return RemoteChild(self._agents[rank], setup)

    def end(self) -> None:
        """Lets the agents go; the job ends."""
        self.close()
        for agent in self._agents.values():
            with contextlib.suppress(JobLost):
                agent.ask("end")


def report_the_end() -> None:
    """On rank 0: when torchrun ends the job because a rank has gone, this process ends as Ctrl-C does, with a line."""

    def end(*_: object) -> None:
        raise JobLost("torchrun ended this job: another of its processes has gone; torchrun's own report names it")

    signal.signal(signal.SIGTERM, end)


def dismiss() -> None:
    """Lets agents go that no world has called."""
    _join().set(_KEY, "")


def _told_by_rank_zero(store: Any) -> str:
    """The address of rank 0, which sets it when it first needs its ranks. With other worlds before, that may take
    hours.

    Waits as long as the store answers. Raises RuntimeError, as torch does, when that has gone.
    """
    while not store.check([_KEY]):
        time.sleep(_LOOK)
    told: bytes = store.get(_KEY)
    return told.decode()


def be_an_agent() -> int:
    """Serve rank 0 until it ends; return the exit status. A rank that loses rank 0 says so and ends with 1."""
    rank = int(os.environ["RANK"])
    store = _join()
    try:
        called = _told_by_rank_zero(store)
    except RuntimeError:
        print(f"lockstep: rank {rank} has lost torchrun's store, so this torchrun job ends here", flush=True)
        return 1
    if not called:
        return 0
    port, _, key = called.partition(":")
    driver = Client((os.environ["MASTER_ADDR"], int(port)), authkey=bytes.fromhex(key))
    driver.send((rank, socket.gethostname()))
    child: process.Child | None = None
    answers = False  # whether an answer of the child may come
    try:
        while True:
            ready = wait([driver, child.connection] if child and answers else [driver], process.TICK)
            if child is not None:
                child.watch()
                if child.connection in ready:
                    try:
                        driver.send(("answer", child.receive()))
                    except process.Died as died:
                        answers = False
                        driver.send(("died", str(died)))
            if driver not in ready:
                continue
            match driver.recv():
                case ("start", Setup() as told):
                    setup = replace(told, local_rank=int(os.environ["LOCAL_RANK"]))
                    child = process.Child(serve, setup, rank=setup.rank)
                    answers, trouble = True, ""
                    try:
                        child.await_start()
                    except process.Died as died:
                        answers, trouble = False, str(died)
                    driver.send(("started", trouble))
                case ("job", message, memory) if child is not None:
                    child.memory = memory
                    child.send(message)
                case ("tell", what):
                    driver.send(("told", getattr(child, what)()))
                case ("kill",) if child is not None:
                    child.kill()
                    child = None
                case ("end",):
                    return 0
    except (EOFError, OSError):
        print(f"lockstep: rank {rank} has lost rank 0, so this torchrun job ends here", flush=True)
        return 1
    finally:
        if child is not None:
            child.kill()
