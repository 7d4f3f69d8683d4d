"""Lockstep as a plugin of pytest's: which laws run against what, where, and what is told at the end. Each hook is a few
lines over a module of `lockstep.properties`.

It is loaded where it is asked for, with ``-p lockstep.pytest_plugin``, and nowhere else: to install Lockstep registers
nothing with pytest.
"""

import functools
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import lockstep
from lockstep.properties.defects.ledger import Ledger
from lockstep.properties.implementations import KERNELS, Unusable, as_found
from lockstep.properties.kernels.under_test import Kernels, look_up_kernels
from lockstep.properties.law import Law
from lockstep.properties.ranks import cuda_stubs
from lockstep.properties.reports.matrix import filed_by, for_junit, verdicts
from lockstep.properties.reports.overview import as_told
from lockstep.properties.reports.paragraphs import fitted
from lockstep.properties.results.run import Results
from lockstep.properties.running import page, profiles
from lockstep.properties.running.apart import Docket, tell_nobody
from lockstep.properties.running.begin import SEED, begin
from lockstep.properties.running.bench import Bench
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.hold import hold as hold_against
from lockstep.properties.running.import_path import another_lockstep
from lockstep.properties.running.nothing_of_pytest import quieten, quieten_workers
from lockstep.properties.running.options import IMPLEMENTATION, add_options
from lockstep.properties.running.profiles import of_so_many
from lockstep.properties.running.record import Record
from lockstep.properties.running.selection import hold_together, of_kernels, pairs, part, plainest_first, runs
from lockstep.properties.running.summary import summary
from lockstep.properties.running.telling import Teller
from lockstep.properties.trial import Trial
from lockstep.worlds import torchrun
from lockstep.worlds.contract import World

VERSIONS = ("torch", "numpy", "hypothesis")  # of these packages are told
LAWS = Path(__file__).parent / "properties"  # the folder that has a file for each family of laws
_BENCH = pytest.StashKey[Bench]()
_RECORD = pytest.StashKey[Record | None]()
_RESULTS = pytest.StashKey[Results]()
_LEDGER = pytest.StashKey[Ledger]()  # where the laws are held apart from what is known to be wrong: of a user's code
_TELLER = pytest.StashKey[Teller]()
_PLACES = pytest.StashKey[dict[str, int]]()
_NOTES = "lockstep_notes"  # what a worker of pytest-xdist is told of the folder of the ledger

profiles.register()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that Lockstep adds."""
    group = parser.getgroup("lockstep", "Lockstep: the laws of data-parallel training")
    group.addoption("--impl", **IMPLEMENTATION)
    add_options(group.addoption)
    group.addoption("--every-law", action="store_true", help="list each law at the end, as -v does")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Of a torchrun job only rank 0 runs tests; the others serve it."""
    cuda_stubs.ask(config.getoption("--cuda-stubs"))
    if "torchrun" in config.getoption("--world") and torchrun.is_agent() and not config.option.help:
        return torchrun.be_an_agent()
    return None


@pytest.hookimpl(tryfirst=True)  # before Hypothesis' plugin reads the seed
def pytest_configure(config: pytest.Config) -> None:
    """A wrong implementation, a world that cannot be, or an interruption, is one clear line, before any collection."""
    try:
        config.stash[_RESULTS] = Results(config.getoption)
        config.stash[_BENCH], config.stash[_RECORD] = begin(config)
    except Unusable as error:
        raise pytest.UsageError(str(error)) from None
    except KeyboardInterrupt as ended:  # which pytest does not tell so early
        why = str(ended) or "interrupted"
        pytest.exit(f"{why}, before any law was held against anything", returncode=pytest.ExitCode.INTERRUPTED)
    if config.getoption("--impl"):
        _open_a_ledger(config)


def _open_a_ledger(config: pytest.Config) -> None:
    """Of a run against a user's code: where its processes note what they find."""
    told = getattr(config, "workerinput", None)
    if told is not None:
        config.stash[_BENCH].shared = Path(told[_NOTES])
        config.stash[_LEDGER] = Ledger(Path(told[_NOTES]))
        return
    folder: Path | None = None
    if getattr(config.option, "numprocesses", None):
        folder = Path(tempfile.mkdtemp(prefix="lockstep-"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.stash[_LEDGER] = Ledger(folder)
    config.stash[_TELLER] = Teller(config.stash[_LEDGER], functools.partial(_say, config))
    config.pluginmanager.register(_Tells(config))


def _say(config: pytest.Config, line: str) -> None:
    """A line to the terminal, past pytest's capture."""
    capture = config.pluginmanager.getplugin("capturemanager")
    terminal = config.pluginmanager.getplugin("terminalreporter")
    with capture.global_and_fixture_disabled():
        terminal.write_line(line)
        terminal.flush()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leaves no process behind."""
    if _TELLER in config.stash:
        config.stash[_TELLER].close()
    if _BENCH in config.stash:
        config.stash[_BENCH].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist: every worker has the seed of the run, and the place for notes."""
    node.workerinput[SEED] = node.config.getoption(SEED)
    if _LEDGER in node.config.stash:
        node.workerinput[_NOTES] = str(node.config.stash[_LEDGER].folder)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --impl only the laws run: the suite's own tests say nothing about somebody's implementation."""
    if config.getoption("--impl") and collection_path.suffix == ".py" and collection_path.parent != LAWS:
        return True
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each law meets each implementation on each world, and each law of kernels all kernels."""
    bench = metafunc.config.stash[_BENCH]
    if hasattr(metafunc.function, "kernel_law"):
        of_a_user = bool(metafunc.config.getoption("--impl"))
        metafunc.parametrize("kernels", of_kernels(bench) if of_a_user else list(KERNELS), indirect=True)
    if hasattr(metafunc.function, "law"):
        metafunc.parametrize("trial", pairs(bench), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A law that an implementation does not claim, or a world cannot have, is not run; the matrix says so."""
    bench, of_a_user = config.stash[_BENCH], bool(config.getoption("--impl"))
    # What is not claimed would take half of the time.
    probed = of_a_user and bench.pace is None and config.getoption("--examples") is None
    kept = part(config.getoption("--shard"), [item for item in items if runs(bench, item, probed)])
    if len(kept) < len(items):
        chosen = set(map(id, kept))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = kept
    if of_a_user:
        items.sort(key=functools.partial(plainest_first, bench))


@pytest.hookimpl(trylast=True)  # after others have chosen among them
def pytest_collection_finish(session: pytest.Session) -> None:
    """Give each law its place, the plainest the first; what is left when all have chosen is held together."""
    session.config.stash[_PLACES] = {item.nodeid: place for place, item in enumerate(session.items)}
    if _TELLER in session.config.stash and session.items:
        session.config.stash[_TELLER].laws = len(session.items)
    chosen = [(*item.callspec.params["trial"], law) for item in session.items if (law := _law(item))]  # type: ignore[attr-defined]
    bench = session.config.stash[_BENCH]
    if chosen and bench.model is None:
        hold_together(bench, chosen)
    if bench.pace is not None:
        bench.pace.expect(
            (implementation.name, law, world != "sim", bench.others[implementation.name, world])
            for implementation, world, law in chosen
        )


def _law(item: pytest.Item) -> Law | None:
    return getattr(getattr(item, "function", None), "law", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """pytest-xdist: the process that tells of the laws collects none itself."""
    config = node.config
    config.stash[_PLACES] = {name: place for place, name in enumerate(ids)}
    if (teller := config.stash.get(_TELLER, None)) is not None and teller.laws is None:
        teller.laws = len(ids)
        teller.watch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Once a law has ended, those that come later may file what they find."""
    try:
        return (yield)
    finally:
        if (ledger := item.config.stash.get(_LEDGER, None)) is not None:
            ledger.done(item.config.stash[_PLACES][item.nodeid])


class _Tells:
    """Tells how far a run is: in the process that has the terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A law has ended, maybe with the process that held it: then nobody waits for it."""
        if report.when in ("setup", "teardown") and report.passed:
            return
        self._config.stash[_TELLER].ended(filed_by(report))
        if report.when not in ("setup", "call", "teardown"):  # of a process that has died
            self._config.stash[_LEDGER].done(self._config.stash[_PLACES].get(report.nodeid, 0))


def pytest_report_teststatus(report: Any, config: pytest.Config) -> tuple[str, str, str] | None:
    """Of laws on a user's code no dot is printed; what breaks one has been told by then."""
    if _LEDGER not in config.stash:
        return None
    if report.failed:
        told = (filed_by(report) or {}).get("broken_by")
        return ("broken", "", "") if told else None
    return ("skipped" if report.skipped else "passed" if report.when == "call" else "", "", "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let known failures pass. --junitxml prints what a test has filed by its end: each value as a property."""
    report = yield
    if report.when == "call":
        item.config.stash[_RESULTS].settle(report)
    if report.when == "teardown":
        report.user_properties = for_junit(report.user_properties)
    return report


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Trial:
    """An implementation on a world."""
    return request.config.stash[_BENCH].trial(*request.param)


@pytest.fixture
def budget(request: pytest.FixtureRequest, trial: Trial) -> Budget:
    """The budget of a law. It writes its progress past pytest's capture, so that a log has it at once."""
    config = request.config
    capture = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        begin = "" if _LEDGER in config.stash else "\n"  # after pytest's dots
        with capture.global_and_fixture_disabled():
            print(f"{begin}{line}", file=sys.stderr, flush=True)

    bench = config.stash[_BENCH]
    others, most = bench.others[trial.implementation.name, trial.world.name], config.getoption("--examples")
    examples = most and of_so_many(most, trial.implementation.name, trial.world.name != "sim")
    told: dict[str, Any] = {"examples": examples, "others": others, "pace": bench.pace}
    return Budget(config.getoption(SEED), config.stash[_RECORD], say, len(bench.names), **told)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Files a property of a test, as pytest's `record_property` does, but for the warning that goes with that."""
    return lambda name, value: request.node.user_properties.append((name, value))


@pytest.fixture
def hold(
    request: pytest.FixtureRequest, trial: Trial, record: Callable[[str, object], None], budget: Budget
) -> Callable[[Law], None]:
    """Holds a law against an implementation on a world; on a user's own model, where there is one. Against a user's
    code, apart from what is known to be wrong with it.
    """
    config = request.config
    model = config.stash[_BENCH].model
    docket = None
    if _LEDGER in config.stash:
        tell = (lambda defect: config.stash[_TELLER].look()) if _TELLER in config.stash else tell_nobody
        docket = Docket(config.stash[_LEDGER], config.stash[_PLACES][request.node.nodeid], tell)

    def held(law: Law) -> None:
        hold_against(law if model is None else model.on(law), trial, record, budget, docket)

    return held


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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Tell the lines of the header where pytest is quiet, as in `lockstep check`."""
    config = session.config
    if config.option.verbose < 0 and config.getoption("--impl") and not hasattr(config, "workerinput"):
        for line in pytest_report_header(config):
            _say(config, fitted(line))
        quieten(config.pluginmanager.getplugin("terminalreporter"))
        if (workers := config.pluginmanager.getplugin("terminaldistreporter")) is not None:
            quieten_workers(workers)
            count = len(config.getoption("tx") or ())
            _say(config, f"lockstep: starting {count} worker process{'es' * (count != 1)}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The implementations, worlds, profile, seed and versions of a run, and the Lockstep that runs."""
    versions = ", ".join(f"{package} {version(package)}" for package in VERSIONS)
    names = config.getoption("--impl") or ["what ships with Lockstep"]
    profile, seed, bench = settings.get_current_profile_name(), config.getoption(SEED), config.stash[_BENCH]
    count = {world: profiles.examples(world != "sim", len(bench.names)) for world in bench.where.worlds}
    examples = ", ".join(f"{most} on {world}" for world, most in count.items())
    asked, seconds = config.getoption("--examples"), config.getoption("--budget")
    told = f"examples per law: {asked or f'{examples} (profile {profile})'}"
    told = f"about {seconds} for all laws together, in place of a number of examples" if seconds else told
    other = another_lockstep(config.invocation_params.dir)
    return [
        f"lockstep: {', '.join(names)}; lockstep {lockstep.__version__}, {versions}",
        *([f"lockstep: {Path(__file__).parent} is what runs, and not {Path(other).parent}"] if other else []),
        *(f"lockstep: {name}" for name in _as_found(config)),
        f"lockstep: {told}",
        *([f"lockstep: seed {seed} repeats the run"] if seed is not None else []),
        *bench.where.words(),
        *([f"lockstep: on the model of {bench.model.name} alone"] if bench.model else []),
        *([f"lockstep: {cuda_stubs.TOLD}"] if cuda_stubs.are_asked() else []),
    ]


def _as_found(config: pytest.Config) -> list[str]:
    """One line for each user class: how Lockstep will use it."""
    theirs = config.stash[_BENCH].implementations if config.getoption("--impl") else []
    return [f"{each.short}: {words}" for each in theirs if (words := as_found(each))]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """pytest-xdist: what a worker left out is known to it alone. A worker that has died tells nothing."""
    told = getattr(node, "workeroutput", {}).get("left_out", ())
    node.config.stash[_BENCH].left_out |= {tuple(each) for each in told}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands what it left out to the process that prints the summary.

    A known failure that is mended fails the run.
    """
    config = session.config
    if _TELLER in config.stash:
        config.stash[_TELLER].close()
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = sorted(config.stash[_BENCH].left_out)
    elif terminal := config.pluginmanager.getplugin("terminalreporter"):  # whose summary is still to come
        rows = verdicts(report for reports in terminal.stats.values() for report in reports)
        complete = _is_complete(config) and not _was_stopped(session.exitstatus, config)
        if config.stash[_RESULTS].look_for_mended(rows, complete=complete) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> Generator[None, object, None]:
    """The verdicts stand last for a user's own class. In the suite pytest's list of failed tests does."""
    of_a_user = bool(config.getoption("--impl"))
    if not of_a_user:
        _tell_verdicts(terminalreporter, exitstatus, config)
    yield
    if of_a_user:
        _tell_verdicts(terminalreporter, exitstatus, config)


def _tell_verdicts(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Tell and keep the verdict of every law, for every implementation and world."""
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    bench, results = config.stash[_BENCH], config.stash[_RESULTS]
    words = config.getoption("keyword")  # with which what was not chosen is not told
    filed = verdicts(reports, () if words else bench.left_out)
    stopped = _was_stopped(exitstatus, config)
    of_a_user = bench if config.getoption("--impl") else None
    results.keep(
        filed,
        lockstep=lockstep.__version__,
        versions={package: version(package) for package in VERSIONS},
        profile=settings.get_current_profile_name(),
        seed=config.getoption(SEED) or "",
        worlds=tuple(world for world in bench.where.worlds if world not in bench.where.impossible),
        stopped=stopped,
    )
    defects = config.stash[_LEDGER].defects() if _LEDGER in config.stash else None
    tell = functools.partial(summary, filed, stopped, of_a_user, defects=defects, complete=_is_complete(config))
    if lines := tell():
        terminalreporter.section("verdicts")
        for line in tell(folded=bool(of_a_user) and not _in_full(config)):
            terminalreporter.write_line(line)
        for line in results.told(filed):
            terminalreporter.write_line(line)
        if file := config.getoption("--html"):
            rows = filed if defects is None else as_told(filed, [defect.filed for defect in defects])
            about = {"profile": settings.get_current_profile_name(), "seed": config.getoption(SEED) or "none"}
            page.write(Path(file), bench, rows, {**about, "lockstep": lockstep.__version__, "torch": version("torch")})
            terminalreporter.write_line(f"The page of this run: {file}")
        if record := config.stash[_RECORD]:
            record.keep_summary([*pytest_report_header(config), "", *lines], filed)
    elif of_a_user and stopped:
        page_too = ", so that there is no page" if config.getoption("--html") else ""
        terminalreporter.write_line(f"The run was stopped before any law had ended{page_too}.")
    elif of_a_user and words and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        terminalreporter.write_line(
            f"No law was held: none with {words!r} in its name is claimed. `lockstep laws` lists the names; without -k "
            "the verdicts name the laws that are not claimed."
        )


def _is_complete(config: pytest.Config) -> bool:
    """True if all laws were asked for."""
    return not any(map(config.getoption, ("keyword", "--shard", "--model")))


def _in_full(config: pytest.Config) -> bool:
    """True if every law is to be listed."""
    return bool(config.getoption("--every-law")) or config.option.verbose > 0


def _was_stopped(exitstatus: int, config: pytest.Config) -> bool:
    """True if a run ended before every law had come to its end."""
    terminal, most = config.pluginmanager.getplugin("terminalreporter"), config.getoption("maxfail") or 0
    return exitstatus == pytest.ExitCode.INTERRUPTED or 0 < most <= sum(
        len(terminal.stats.get(how, [])) for how in ("failed", "broken")
    )
