"""pytest's options, Hypothesis' profiles, and what the laws run on."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from properties.implementations import CORRECT, KERNELS, WRAPPERS, Implementation, Unusable, look_up
from properties.kernels import device
from properties.kernels.held import Kernels, look_up_kernels
from properties.law import concerns, sentence
from properties.matrix import matrix
from properties.soundness import Unsound, check
from properties.strategies import MOST_RANKS
from properties.trial import Trial
from properties.where import DEFAULT, WORLDS, Where, decide
from worlds import torchrun
from worlds.contract import World, most_ranks
from worlds.devices import DEVICES

LAWS = Path(__file__).parent / "properties"

settings.register_profile("dev", max_examples=100)
settings.register_profile("ci", max_examples=500, derandomize=True, database=None)
settings.register_profile("nightly", max_examples=5000)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that Lockstep adds."""
    group = parser.getgroup("lockstep", "Lockstep: the laws of data-parallel training")
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="hold the laws against this class or factory, which takes the module to wrap (a module's name, or a path "
        "ending in .py); may be given several times; without it, the suite checks itself and what it ships",
    )
    group.addoption(
        "--world",
        action="append",
        default=[],
        choices=WORLDS,
        help="where ranks run: sim, one process that simulates them; gloo, one process per rank; nccl, one GPU per "
        "rank; torchrun, the ranks of the torchrun job that started pytest; may be given several times "
        f"(default: {' and '.join(DEFAULT)})",
    )
    group.addoption("--device", choices=DEVICES, help="where ranks put tensors (default: cuda for nccl, else cpu)")
    group.addoption(
        "--in-process", action="store_true", help="run the simulated world in pytest's own process, for a debugger"
    )
    group.addoption(
        "--ranks-per-gpu",
        type=int,
        default=1,
        metavar="N",
        help="nccl: let N ranks share a GPU; they talk as if on different hosts (default: 1)",
    )


class Bench:
    """What one pytest process runs laws on: its worlds, started when first used, and the implementations."""

    def __init__(self, names: list[str], where: Where) -> None:
        self._names, self.where, self._worlds = names, where, dict[str, World]()
        self._implementations: list[Implementation] | None = None
        self._faults: dict[str, str] = {}
        # What did not run: implementation, law's number, law, and the world that cannot have it (empty: not claimed).
        self.left_out: set[tuple[str, str, str, str]] = set()

    def world(self, name: str) -> World:
        """The world of that name; always the same one."""
        if name not in self._worlds:
            self._worlds[name] = self.where.start(name)
        return self._worlds[name]

    def fault(self, name: str) -> str:
        """What is wrong with that world itself, looked at once; empty if nothing is."""
        if name not in self._faults:
            self._faults[name] = ""
            world = self.world(name)
            try:
                check(world, range(1, min(most_ranks(world) or MOST_RANKS, MOST_RANKS) + 1))
            except Unsound as unsound:
                self._faults[name] = str(unsound)
        return self._faults[name]

    @property
    def implementations(self) -> list[Implementation]:
        """What is under test. Raises Unusable."""
        if self._implementations is None:
            self._implementations = look_up(self._names, self.world("sim"))
        return self._implementations

    def close(self) -> None:
        """Ends every process that was started."""
        for world in self._worlds.values():
            getattr(world, "end", world.close)()  # of torchrun: lets the other ranks of the job go as well
        if "torchrun" in self.where.worlds and "torchrun" not in self._worlds:
            torchrun.dismiss()


_BENCH = pytest.StashKey[Bench]()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Of a torchrun job only rank 0 runs tests; the others serve it."""
    if "torchrun" in config.getoption("--world") and torchrun.is_agent() and not config.option.help:
        return torchrun.be_an_agent()
    return None


def pytest_configure(config: pytest.Config) -> None:
    """A wrong --impl, or a world that cannot be, is one clear line, before anything is collected."""
    for folder in (str(config.rootpath), str(config.invocation_params.dir)):
        if folder not in sys.path:  # a user's module is found from where pytest was started
            sys.path.insert(0, folder)
    device.choose()
    names = config.getoption("--impl")
    option = config.getoption
    try:
        workers = bool(getattr(config.option, "numprocesses", None))
        where = decide(
            option("--world"), option("--device"), option("--in-process"), option("--ranks-per-gpu"), workers
        )
    except Unusable as error:
        raise pytest.UsageError(str(error)) from None
    if "torchrun" in where.worlds:
        torchrun.report_the_end()
    bench = config.stash[_BENCH] = Bench(names or [*CORRECT, *WRAPPERS], where)
    if names and not config.option.help and not hasattr(config, "workerinput"):
        try:
            bench.implementations  # noqa: B018, looked up for its errors
        except Unusable as error:
            bench.close()
            raise pytest.UsageError(str(error)) from None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leaves no process behind."""
    if _BENCH in config.stash:
        config.stash[_BENCH].close()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --impl only the laws run: the suite's own tests say nothing about somebody's implementation."""
    if config.getoption("--impl") and collection_path.suffix == ".py" and collection_path.parent != LAWS:
        return True
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each law meets each implementation on each world, and each law of kernels all kernels."""
    if hasattr(metafunc.function, "kernel_law"):
        names = list(KERNELS)
        if metafunc.config.getoption("--impl"):
            names = [one.name for one in metafunc.config.stash[_BENCH].implementations if one.claims.kernels]
        metafunc.parametrize("kernels", names, indirect=True)
    if not hasattr(metafunc.function, "law"):
        return
    bench = metafunc.config.stash[_BENCH]
    skipped = {world: pytest.mark.skip(reason=reason) for world, reason in bench.where.impossible.items()}
    pairs = [
        pytest.param(
            (implementation, world),
            id=f"{implementation.short}-{world}",
            marks=[skipped[world]] if world in skipped else [],
        )
        for implementation in bench.implementations
        for world in bench.where.worlds
    ]
    metafunc.parametrize("trial", pairs, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A law that an implementation does not claim, or a world cannot have, is not run; the matrix says so."""
    kept, left_out = [], []
    for item in items:
        law = getattr(getattr(item, "function", None), "law", None)
        implementation, world = item.callspec.params["trial"] if law else (None, "")
        unclaimed = law is not None and not concerns(law, implementation.claims)
        impossible = law is not None and bool(law.only_on) and world not in law.only_on
        # A law of kernels where none are under test has been given nothing to run on.
        nothing = hasattr(getattr(item, "function", None), "kernel_law") and not isinstance(
            item.callspec.params["kernels"], str
        )
        (left_out if unclaimed or impossible or nothing else kept).append(item)
        if unclaimed or impossible:
            told = (implementation.name, law.number, sentence(law), "" if unclaimed else world)
            config.stash[_BENCH].left_out.add(told)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Trial:
    """An implementation on a world."""
    implementation, world = request.param
    bench = request.config.stash[_BENCH]
    gloo, sim = lambda: bench.world("gloo"), lambda: bench.world("sim")
    return Trial(implementation, bench.world(world), gloo, sim, world_fault=bench.fault(world))


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Kernels under test, in the simulated world's process."""
    return look_up_kernels(request.param, request.config.stash[_BENCH].world("sim"))


@pytest.fixture(scope="session")
def sim(request: pytest.FixtureRequest) -> World:
    """The simulated world of this process."""
    return request.config.stash[_BENCH].world("sim")


@pytest.fixture(scope="session")
def gloo(request: pytest.FixtureRequest) -> World:
    """The gloo world of this process."""
    return request.config.stash[_BENCH].world("gloo")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Which implementations, worlds, profile and versions a run is about."""
    from importlib.metadata import version

    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy", "hypothesis"))
    names = config.getoption("--impl") or ["what ships with Lockstep"]
    return [
        f"lockstep: {', '.join(names)}; {settings().max_examples} examples a law; {versions}",
        *config.stash[_BENCH].where.words(),
    ]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """pytest-xdist: what a worker left out is known to it alone."""
    node.config.stash[_BENCH].left_out |= {tuple(each) for each in node.workeroutput.get("left_out", ())}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands what this worker left out to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = sorted(session.config.stash[_BENCH].left_out)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The verdict of every law, for every implementation and world."""
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    lines = matrix(reports, config.stash[_BENCH].left_out)
    if lines:
        terminalreporter.section("verdicts")
        for line in lines:
            terminalreporter.write_line(line)
