"""A child process under supervision: a message in, a message out, a clock, a log of its output, and a sure end.

Children are forked from one of multiprocessing's fork servers, which has imported torch once, so starting one takes
milliseconds. There are two servers with different hash seeds, as two processes of a real job have: the order of a set
of names then differs between ranks. Objects that hash by address, such as parameters, have the same order in every run,
if Linux permits it.

Between server and child stands a guard, a process that only waits. When the child ends, the guard ends all that the
child has started. When the fork server ends, the guard ends the child too; the fork server ends with the supervisor,
however that ends. While a child is waited for, its memory and its log are watched.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import json
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ForkServer
from pathlib import Path
from typing import Any, NoReturn

from lockstep.home import HOME, IS_CLONE
from lockstep.worlds import progress
from lockstep.worlds.addresses import same_addresses
from lockstep.worlds.blame import Progress
from lockstep.worlds.contract import raised
from lockstep.worlds.process_tree import descendants, queued, signal_all, state_of

# Examples after which a world replaces its processes: a hook that knows its wrapper, which knows the parameter, is a
# cycle through C++ that Python's collector cannot free, so most implementations leave some 25 kB behind each time.
LIFETIME = 2000
# Bytes that a child may hold, in memory and in its log. An accelerator's libraries alone take some GiB.
MEMORY, MEMORY_WITH_DEVICE = 4 << 30, 24 << 30
LOG_LIMIT = 4 << 20
TICK = 0.1  # seconds between two looks at a child that is waited for
LOOK = 0.2  # and between two at how far it is: ranks that wait in different collectives wait in vain
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STACK_SIGNAL = signal.SIGUSR1
START_LIMIT = 120.0  # seconds for a child to begin, torch's import by the fork server included
_LOG_TAIL = 4000  # characters of a child's output that a report may carry


class Died(Exception):
    """The child ended instead of answering. The message says how: an exit code, a signal, or why it was ended."""


# torch._dynamo: DDP's constructor imports it, which would take every rank a second or two; .optim has ZeRO's.
_PRELOADED = ["lockstep.worlds.preloaded", "torch", "torch.distributed", "torch.distributed.optim", "torch._dynamo"]
_PRELOADED += ["lockstep.worlds.serving", "lockstep.worlds.backend_group", "lockstep.worlds.sim.ranks"]
# The first is multiprocessing's own. Hash seeds are fixed, since the same scenario is to have the same verdict.
_SERVERS: tuple[Any, ...] = (multiprocessing.forkserver._forkserver, ForkServer())
_HASH_SEEDS = ("1", "2")
# glibc fills what it allocates with the complement of this byte, so that what nobody has written is the same in every
# run, and shows: floats near the largest (NaN in float16), integers near it too. Else it is zeros, mostly. Blocks that
# a thread keeps for its next call it leaves as they are: none are kept (seen with glibc 2.39, not with 2.36). Nor has
# each thread a part of memory to itself: simulated ranks run in turn, and find what the last one used in the caches.
FILL, _FILL_BYTE = "MALLOC_PERTURB_", 0x80
TUNABLES, ALL_SHARED = "GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1"
# A server imports from where Python's own settings say, and not from the current folder, which may have a module called
# like one of ours. A clone of Lockstep is not where they say.
SAFE_PATH, PATH = "PYTHONSAFEPATH", "PYTHONPATH"
_OWN = "LOCKSTEP_"  # with which Lockstep's own variables begin
SOCKET_PATH = 107  # characters, by unix(7)
TAKEN_BACK = "LOCKSTEP_TAKEN_BACK"  # what a server makes of its environment once it has started, see `preloaded`


@contextlib.contextmanager
def _fork_server(number: int) -> Iterator[multiprocessing.context.ForkServerContext]:
    """The context in which processes are forked from one of the servers, which is made to run.

    Python would run the main module, such as pytest's, again in every process: no child needs it, and it takes longer
    than all the rest of a start.
    """
    server, main, warned = _SERVERS[number], sys.modules["__main__"], list(sys.warnoptions)
    tunables = ":".join(filter(None, (os.environ.get(TUNABLES), ALL_SHARED)))
    told = {"PYTHONHASHSEED": _HASH_SEEDS[number], FILL: str(_FILL_BYTE), TUNABLES: tunables, SAFE_PATH: "1"}
    told["PYTHONWARNINGS"] = ""  # a warning of torch's own, made an error, would end the server
    if IS_CLONE:
        told[PATH] = os.pathsep.join(filter(None, (HOME, os.environ.get(PATH))))
    before = {name: os.environ.get(name) for name in told}
    told[TAKEN_BACK] = json.dumps({name: value for name, value in before.items() if name != "PYTHONHASHSEED"})
    before[TAKEN_BACK] = None
    usual = multiprocessing.forkserver.connect_to_new_process  # the first server's: what Process.start calls
    server.set_forkserver_preload(_PRELOADED)
    os.environ.update(told)
    multiprocessing.forkserver.connect_to_new_process = server.connect_to_new_process
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.warnoptions.clear()
    try:
        with same_addresses(), room_for_sockets():
            server.ensure_running()
        yield multiprocessing.get_context("forkserver")
    finally:
        multiprocessing.forkserver.connect_to_new_process = usual
        sys.modules["__main__"] = main
        sys.warnoptions[:] = warned
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def room_for_sockets() -> Iterator[None]:
    """While it lasts, the folder for temporary files is /tmp if its own name is too long.

    The path of a Unix socket has at most 107 characters, and the fork servers of multiprocessing have sockets there.
    """
    usual = tempfile.tempdir
    if len(tempfile.gettempdir()) + len("/pymp-12345678/listener-12345678") > SOCKET_PATH:
        tempfile.tempdir = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = usual


def preload(module: str) -> None:
    """Has the fork servers import this module too, which every child is going to need: called before they start."""
    _PRELOADED.append(module)


def prepare(ranks: int) -> None:
    """Starts the fork servers of so many ranks, all at once: each takes seconds to import torch."""
    for number in range(min(ranks, len(_SERVERS))):
        with _fork_server(number):
            pass


def _begin(
    serve: Callable[..., None],
    connection: Connection,
    log: str,
    environment: Mapping[str, str],
    arguments: tuple[Any, ...],
) -> None:
    """First thing in a process forked by the fork server, which becomes the child's guard. ``environment``: what the
    supervisor has now of Lockstep's own variables, which may have changed since the fork server started.
    """
    os.setsid()
    for name in [name for name in os.environ if name.startswith(_OWN) and name not in environment]:
        del os.environ[name]
    os.environ.update(environment)
    # Each child is handed what keeps the fork server alive; only the supervisor may have that.
    os.close(multiprocessing.forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    # Where memory runs out before the supervisor looks, the kernel is to end this process and none of its parents.
    Path("/proc/self/oom_score_adj").write_text("1000")
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if (pid := os.fork()) > 0:
        connection.close()
        _guard(pid, Path(log).parent.parent)
    end_with_parent()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that `Leftovers` sees what a daemon's parent has left
    os.setpgid(0, 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False, errors="replace")
    # multiprocessing forbids a daemon children of its own. An implementation may have some; the guard ends them.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    progress.begin(log)
    stacks = os.open(log + ".stacks", os.O_WRONLY | os.O_CREAT)
    faulthandler.register(_STACK_SIGNAL, file=stacks, all_threads=True)
    gc.freeze()  # what torch's import has made is most of all objects, stays, and takes long to go through
    gc.enable()  # which a fork server has off
    with contextlib.suppress(EOFError, BrokenPipeError):  # the supervisor has gone
        connection.send(os.getpid())
        serve(connection, *arguments)
    os._exit(0)  # an implementation's own threads must not keep the process


def _guard(pid: int, folder: Path) -> NoReturn:
    """Stays behind a child: when the child ends, or the fork server, ends all that the child has started.

    A supervisor that was killed has left its folder, which goes too.
    """
    server = os.getppid()

    def clear(seconds: float) -> None:
        """Removes the folder if the supervisor has gone, or goes in that time: what tells of its end may come one by
        one, as files are closed.
        """
        if supervisor := multiprocessing.parent_process():
            supervisor.join(seconds)
            if not supervisor.is_alive():
                shutil.rmtree(folder, ignore_errors=True)

    def end_all() -> None:
        """Until there is none left: a process may start another while it is looked up."""
        while left := descendants(os.getpid()):
            signal_all(left, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0] > 0:
                    pass

    def end(*_: object) -> None:
        end_all()
        clear(0 if os.getppid() == server else 1)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    end_all()
    if code < 0:  # ends as the child did, so that the supervisor is told
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code == 0:  # as it does when the supervisor has gone; one that closes ends this guard as well
        clear(0.5)
    os._exit(code)


def end_with_parent() -> None:
    """Ends this process when the thread that started it ends, whatever it does then."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory(prefix="lockstep-")
    atexit.register(made.cleanup)
    return made


def new_folder() -> tempfile.TemporaryDirectory[str]:
    """An empty folder, in the one that this process has for all its children; both go with it, however it ends."""
    return tempfile.TemporaryDirectory(dir=_folder().name)


class Child:
    """One supervised process that runs ``serve(connection, *arguments)``. ``rank``: that it is to be, if of several."""

    def __init__(self, serve: Callable[..., None], *arguments: Any, rank: int = 0) -> None:
        self._folder = new_folder()
        self._log = str(Path(self._folder.name) / "log")
        self.connection, theirs = multiprocessing.Pipe()
        own = {name: value for name, value in os.environ.items() if name.startswith(_OWN)}
        given = (serve, theirs, self._log, own, arguments)
        with _fork_server(rank % len(_SERVERS)) as context:
            self._process = context.Process(target=_begin, args=given, daemon=True)
            self._process.start()
        theirs.close()
        self.memory = MEMORY
        self._pid = 0  # of the child itself; that of _process is its guard
        self._ended = ""  # why the supervisor ended it
        self._stopped = False
        self._watched = 0.0

    def await_start(self) -> None:
        """Returns once the child serves, so that no example pays for its start. Raises Died if it does not."""
        if not wait([self], START_LIMIT):
            raise Died(f"did not start within {START_LIMIT:g} s")
        self._pid = self.receive()

    def send(self, message: Any) -> None:
        """Hands a message over; one to a child that has gone is seen by `receive`."""
        self.watch()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self) -> Any:
        """The child's answer, which must be there (see `wait`). Raises Died where the child ended instead."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(5)
            raise Died(self._ended or _how_it_ended(self._process.exitcode)) from None
        except (Exception, SystemExit) as error:  # classes of the function's own are unpickled
            raise Died(f"gave an answer that cannot be read: {raised(error).message}") from None

    def ended(self) -> str:
        """The end of its process, as far as it is known without asking; empty while it runs."""
        return "" if self._process.is_alive() else _how_it_ended(self._process.exitcode)

    def watch(self) -> None:
        """Ends a child that is stopped or holds too much memory, and cuts its log; looks once in a while only."""
        now = time.monotonic()
        if now - self._watched < TICK or not self._pid:
            return
        self._watched = now
        state, resident = state_of(self._pid)
        stopped, self._stopped = self._stopped, state == "T"
        if resident > self.memory:
            self._end(
                f"held {resident / 2**30:.1f} GiB of memory and was ended; {self.memory / 2**30:g} GiB are allowed"
            )
        elif stopped and self._stopped:  # twice: not somebody's short pause
            self._end("was stopped by a signal (SIGSTOP) and did not go on")
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._log).st_size > LOG_LIMIT:
                end = self.output()
                os.truncate(self._log, 0)  # it is written with O_APPEND, so what comes next follows
                with open(self._log, "a") as log:
                    log.write(end)

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason
        signal_all([self._pid], signal.SIGKILL)

    def stacks(self) -> str:
        """The stack of every Python thread of the child, most recent call first; empty if it cannot answer."""
        written = Path(self._log + ".stacks")
        if not self._pid or not self._process.is_alive() or not written.exists():
            return ""
        before = written.stat().st_size
        signal_all([self._pid], _STACK_SIGNAL)
        deadline, size = time.monotonic() + 2, before
        while time.monotonic() < deadline:  # until it has written something and then nothing more for a while
            time.sleep(0.1)
            size, earlier = written.stat().st_size, size
            if size == earlier > before:
                break
        return written.read_text(errors="replace")[before:]

    def progress(self) -> Progress:
        """Its progress."""
        return progress.progress(self._log)

    def off_the_clock(self) -> float:
        """The seconds in which it has imported."""
        return progress.seconds_off_the_clock(self._log)

    def queued(self) -> float:
        """The seconds in which its threads, taken together, were ready to run and waited for a core."""
        return queued(self._pid)

    def output(self) -> str:
        """The end of what the child printed, on both streams."""
        path = Path(self._log)
        if not path.exists():
            return ""
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_TAIL))
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """Ends the child and everything that it has started."""
        self.connection.close()
        guard = self._process.pid
        if guard is not None and self._process.is_alive():
            # Stopped first, the child can start nothing more. What it has started the guard ends, and what that starts.
            known = descendants(guard)
            signal_all([pid for pid in known if pid == self._pid], signal.SIGSTOP)
            signal_all([guard], signal.SIGTERM)
            self._process.join(10)
            if self._process.is_alive():  # it has been stopped itself, say
                signal_all([*descendants(guard), guard], signal.SIGKILL)
            if self._process.exitcode == -signal.SIGTERM:  # it had only begun, and did not know what to do
                signal_all(known, signal.SIGKILL)
        self._process.join(10)
        self._folder.cleanup()


class Clock:
    """The seconds that an example has, without those in which its children import what it needs, or are ready to run
    and the machine runs something else: a verdict is not to depend on what else is going on. Of either at most as many
    as a child's start may take.
    """

    def __init__(self, limit: float) -> None:
        self._began = time.monotonic()
        self.deadline = self._began + limit
        self._looked: float | None = None
        self._queued: dict[Child, float] = {}
        self._off: dict[Child, float] = {}

    def until_look(self) -> float:
        """Seconds until somebody should look whether the time is over."""
        return min(LOOK, self.deadline - time.monotonic())

    def is_over(self, children: Iterable[Child]) -> bool:
        """True if time is over for children that have not answered. The clock starts at the first look."""
        now, queued = time.monotonic(), {child: child.queued() for child in children}
        off = {child: child.off_the_clock() for child in queued}
        if self._looked is None:
            self.deadline += now - self._began
        elif now < self._began + START_LIMIT:
            # One that does not get on keeps all others waiting. Of several threads each may have waited at one time.
            waited = max(queued[child] - self._queued.get(child, queued[child]) for child in queued)
            imported = sum(off[child] - self._off.get(child, off[child]) for child in queued)
            self.deadline += min(max(0.0, waited) + max(0.0, imported), now - self._looked)
        self._looked, self._queued, self._off = now, queued, off
        return now >= self.deadline

    def ran(self) -> float:
        """Seconds since the example began."""
        return time.monotonic() - self._began


def wait(children: list[Child], seconds: float) -> list[Child]:
    """The children that have answered or ended, after waiting at most that long for the first."""
    connections = [child.connection for child in children]
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        ready = multiprocessing.connection.wait(connections, min(left, TICK))
        if ready or left <= TICK:
            return [child for child in children if child.connection in ready]
        for child in children:
            child.watch()


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "closed its connection and lives on"
    if code < 0:
        hint = ", as where memory is used that was freed" if -code in (signal.SIGSEGV, signal.SIGBUS) else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"
    return f"exited with code {code}"
