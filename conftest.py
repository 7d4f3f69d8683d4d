"""pytest's side of Lockstep: which laws run against what, where, and what is told at the end. Each hook is a few lines
over a module of `properties`.
"""

import functools
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from properties.implementations import KERNELS
from properties.kernels.under_test import Kernels, look_up_kernels
from properties.law import Law
from properties.reports.causes import tell_once
from properties.reports.matrix import in_short, verdicts
from properties.running import profiles
from properties.running.begin import SEED, begin
from properties.running.bench import Bench
from properties.running.budget import Budget
from properties.running.hold import hold as hold_against
from properties.running.options import add_options
from properties.running.record import Record
from properties.running.selection import pairs, part, runs
from properties.running.summary import summary
from properties.trial import Trial
from worlds import torchrun
from worlds.contract import World

LAWS = Path(__file__).parent / "properties"
_BENCH = pytest.StashKey[Bench]()
_RECORD = pytest.StashKey[Record | None]()
_CAUSES = pytest.StashKey[list[str]]()

profiles.register()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that Lockstep adds."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Of a torchrun job only rank 0 runs tests; the others serve it."""
    if "torchrun" in config.getoption("--world") and torchrun.is_agent() and not config.option.help:
        return torchrun.be_an_agent()
    return None


@pytest.hookimpl(tryfirst=True)  # before Hypothesis' plugin reads the seed
def pytest_configure(config: pytest.Config) -> None:
    """A wrong --impl, a world that cannot be, or an interruption, is one clear line, before anything is collected."""
    try:
        config.stash[_BENCH], config.stash[_RECORD] = begin(config)
    except KeyboardInterrupt as ended:  # which pytest does not tell so early
        why = str(ended) or "interrupted"
        pytest.exit(f"{why}, before any law was held against anything", returncode=pytest.ExitCode.INTERRUPTED)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leaves no process behind."""
    if _BENCH in config.stash:
        config.stash[_BENCH].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist: every worker has the seed of the run."""
    node.workerinput[SEED] = node.config.getoption(SEED)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --impl only the laws run: the suite's own tests say nothing about somebody's implementation."""
    if config.getoption("--impl") and collection_path.suffix == ".py" and collection_path.parent != LAWS:
        return True
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each law meets each implementation on each world, and each law of kernels all kernels."""
    bench = metafunc.config.stash[_BENCH]
    if hasattr(metafunc.function, "kernel_law"):
        names = list(KERNELS)
        if metafunc.config.getoption("--impl"):
            names = [one.name for one in bench.implementations if one.claims.kernels]
        metafunc.parametrize("kernels", names, indirect=True)
    if hasattr(metafunc.function, "law"):
        metafunc.parametrize("trial", pairs(bench), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A law that an implementation does not claim, or a world cannot have, is not run; the matrix says so."""
    kept = part(config.getoption("--shard"), [item for item in items if runs(config.stash[_BENCH], item)])
    if len(kept) < len(items):
        chosen = set(map(id, kept))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """--junitxml prints what a test has filed by its end: in short, since it prints the reports of failures anyway."""
    report = yield
    if report.when == "teardown":
        report.user_properties = in_short(report.user_properties)
    return report


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Trial:
    """An implementation on a world."""
    implementation, world = request.param
    bench = request.config.stash[_BENCH]
    gloo, sim = lambda: bench.world("gloo"), lambda: bench.world("sim")
    any_order = bench.where.any_order
    return Trial(implementation, bench.world(world), gloo, sim, any_order=any_order, world_fault=bench.fault(world))


@pytest.fixture
def budget(request: pytest.FixtureRequest) -> Budget:
    """What a law may spend, and where it tells how far it is: past pytest's capture, so that a log has it at once."""
    config = request.config
    capture = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", file=sys.stderr, flush=True)

    return Budget(config.getoption(SEED), config.stash[_RECORD], say, len(config.stash[_BENCH].names))


@pytest.fixture
def hold(trial: Trial, record_property: Callable[[str, object], None], budget: Budget) -> Callable[[Law], None]:
    """Holds a law against an implementation on a world."""
    return functools.partial(hold_against, trial=trial, record=record_property, budget=budget)


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
    """Which implementations, worlds, profile, seed and versions a run is about."""
    from importlib.metadata import version

    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy", "hypothesis"))
    names = config.getoption("--impl") or ["what ships with Lockstep"]
    profile, seed, bench = settings.get_current_profile_name(), config.getoption(SEED), config.stash[_BENCH]
    count = {world: profiles.examples(world != "sim", len(bench.names)) for world in bench.where.worlds}
    examples = ", ".join(f"{most} on {world}" for world, most in count.items())
    return [
        f"lockstep: {', '.join(names)}; {versions}",
        f"lockstep: profile {profile}; examples for each law and implementation: {examples}",
        *([f"lockstep: seed {seed}; --hypothesis-seed={seed} repeats the run"] if seed is not None else []),
        *bench.where.words(),
    ]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """pytest-xdist: what a worker left out is known to it alone."""
    node.config.stash[_BENCH].left_out |= {tuple(each) for each in node.workeroutput.get("left_out", ())}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands what it left out to the process that prints the summary, which tells each cause once."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = sorted(config.stash[_BENCH].left_out)
    elif terminal := config.pluginmanager.getplugin("terminalreporter"):  # whose summary is still to come
        config.stash[_CAUSES] = tell_once(terminal.stats.get("failed", []), in_full=config.option.verbose > 0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> Generator[None, object, None]:
    """The verdict of every law, for every implementation and world, after all that pytest tells; kept as well where a
    record is.
    """
    yield
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    bench, failed = config.stash[_BENCH], len(terminalreporter.stats.get("failed", []))
    filed = verdicts(reports, bench.left_out)
    most = config.getoption("maxfail") or 0
    stopped = exitstatus == pytest.ExitCode.INTERRUPTED or 0 < most <= failed
    of_a_user = bench if config.getoption("--impl") else None
    if lines := summary(filed, config.stash[_CAUSES], stopped, of_a_user):
        terminalreporter.section("verdicts")
        for line in lines:
            terminalreporter.write_line(line)
        if record := config.stash[_RECORD]:
            record.keep_summary([*pytest_report_header(config), "", *lines], filed)
