"""The choices of a run, made before anything is collected: implementations, worlds, the seed, the record."""

import math
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from lockstep.properties.implementations import CORRECT, EXPERTS, LOOPS, SAMPLERS, WRAPPERS, Unusable, try_out
from lockstep.properties.kernels import device
from lockstep.properties.models.on_yours import try_out_model
from lockstep.properties.running import profiles
from lockstep.properties.running.bench import Bench
from lockstep.properties.running.import_path import look_here_first
from lockstep.properties.running.pace import Pace, seconds_of
from lockstep.properties.running.record import Record
from lockstep.properties.running.selection import part
from lockstep.properties.running.where import decide
from lockstep.worlds import process, torchrun

# The option of Hypothesis' pytest plugin. Workers of pytest-xdist get its value under this name.
SEED = "hypothesis_seed"
TWICE = 1.0  # seconds; two signals within this time count as one


def begin(config: pytest.Config) -> tuple[Bench, Record | None]:
    """The bench of a run, and its record. Raises pytest.UsageError with a message of one line for invalid options.

    A user's implementations have been tried out before this returns.
    """
    look_here_first(config.invocation_params.dir)
    device.choose()
    option = config.getoption
    if option("--impl") and not config.option.help:
        process.prepare(1)  # it imports torch while this process goes on
    told: Mapping[str, Any] | None = getattr(config, "workerinput", None)  # set in a worker of pytest-xdist
    if told is None:
        end_as_by_ctrl_c(config)
    try:
        workers = bool(getattr(config.option, "numprocesses", None))
        asked = (option("--world"), option("--device"), option("--in-process"), option("--ranks-per-gpu"))
        where = decide(*asked, workers, option("--any-order"))
        part(option("--shard"), [])
        seconds = seconds_of(option("--budget")) if option("--budget") else None
        if option("--examples") is not None and (option("--examples") < 1 or seconds is not None):
            raise Unusable(f"--examples {option('--examples')}: give a number of at least 1, and no --budget")
        if option("--report") and Path(option("--report")).exists() and not Path(option("--report")).is_dir():
            raise Unusable(f"--report {option('--report')}: that is a file; name a folder for the scripts of failures")
        if (html := option("--html")) and (Path(html).is_dir() or not Path(html).absolute().parent.is_dir()):
            raise Unusable(f"--html {html}: name a file in an existing folder")
        record = Record(Path(option("--record"))) if option("--record") else None
        if told is not None:
            setattr(config.option, SEED, told[SEED])
        elif not config.option.help:
            profile = option("--hypothesis-profile") or settings.get_current_profile_name()
            setattr(config.option, SEED, profiles.run_seed(option(SEED), profile, record))
    except Unusable as error:
        raise pytest.UsageError(str(error)) from None
    if "torchrun" in where.worlds:
        torchrun.report_the_end()
    names = option("--impl")
    report = Path(option("--report")) if option("--report") else None
    if option("--model") and not names:
        raise pytest.UsageError("--model: name what is to wrap the model, too")
    bench = Bench(names or [*CORRECT, *WRAPPERS, *SAMPLERS, *LOOPS, *EXPERTS], where, report=report)
    bench.pace = None if seconds is None else Pace(seconds, told["workercount"] if told else 1)
    if record is not None and not config.option.help:
        for name in bench.names:
            record.sources(name)
    if names and not config.option.help and (told is None or option("--model")):
        try:
            if told is None:
                try_out(bench.implementations, bench.world("sim"))
            if option("--model"):
                bench.model = try_out_model(option("--model"), bench.implementations, bench.world("sim"))
        except BaseException as error:
            bench.close()
            if isinstance(error, Unusable):
                raise pytest.UsageError(str(error)) from None
            raise
    return bench, record


def end_as_by_ctrl_c(config: pytest.Config) -> None:
    """Let SIGTERM end a run as Ctrl-C does, so that verdicts so far are printed and kept.

    `timeout` sends the signal twice. The second, right after the first, would interrupt pytest while it finishes.
    """
    last = -math.inf

    def end(*_: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > TWICE:
            raise KeyboardInterrupt

    def as_usual() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
        config.add_cleanup(as_usual)
