"""`lockstep exhaust`: every small program against somebody's code."""

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.commands.check import no_target
from lockstep.properties.diagnosing.confirming import confirm
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.exhausting import language
from lockstep.properties.exhausting.certificate import write
from lockstep.properties.exhausting.judged import DELIVERED, asked, check, plainest
from lockstep.properties.exhausting.running import DEFAULT_SIZE, Asked, Exhausting, Result, in_time, shard, told
from lockstep.properties.implementations import Unusable
from lockstep.properties.kernels import device
from lockstep.properties.reports.failure import report
from lockstep.properties.running.import_path import look_here_first
from lockstep.properties.searching.search import Failure
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, NotRunnableHere, Refused


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Run every program up to a size. Raises SystemExit with the exit code, unless all hold."""
    _add_to(parser)
    given = parser.parse_args(arguments)
    if why := no_target(given.target):
        parser.error(why)
    look_here_first(Path.cwd())
    device.choose()
    try:
        begun = Exhausting(
            Asked(given.target, given.size, _processes(given.n), given.record, shard(given.shard), given.report), _say
        )
    except Unusable as error:
        parser.error(str(error))
    try:
        result = begun.run()
        print("\n".join(_ended(begun.trial, result)))
    except KeyboardInterrupt:
        seen = begun.result
        kept = "; with --record a run goes on from there" if given.record is None else ", which are kept"
        _say(f"{told(seen.seen, seen.programs, seen.seconds, 0)}; none of them fails{kept}")
        raise
    except NotRunnableHere as reason:
        print(f"{begun.implementation.short} is not runnable on simulated ranks: {reason}")
        raise SystemExit(5) from None
    except Exception:
        traceback.print_exc()
        _say("this is an error in Lockstep; please report it")
        raise SystemExit(3) from None
    finally:
        begun.close()
    if code := _code(result):
        raise SystemExit(code)


def _add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.usage = "lockstep exhaust TARGET [options]"
    parser.description = (
        "Run every program of a small language up to a size on your code, smallest first. The\n"
        "first that fails is the smallest one. If none fails, a certificate lists those\n"
        "that held. docs/exhaustive.md explains the language and the certificate."
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="a class, or a function that makes the wrapper: package.module:Name, or path/to/file.py:Name",
    )
    sizes = ", ".join(f"{size}: {language.count(size):,}" for size in (8, 9, 10))
    parser.add_argument(
        "--size",
        type=int,
        default=DEFAULT_SIZE,
        metavar="N",
        help=f"the largest number of parts of a program (default: {DEFAULT_SIZE}); programs by size: {sizes}",
    )
    parser.add_argument("-n", metavar="N", default="auto", help="processes (default: one for each core)")
    parser.add_argument("--shard", metavar="I/N", help="run only part I of N of the programs")
    parser.add_argument(
        "--record", metavar="FOLDER", type=Path, help="keep progress here; the same command then resumes a stopped run"
    )
    parser.add_argument(
        "--report", metavar="FOLDER", type=Path, help="where scripts and certificates go (default: lockstep-report)"
    )


def _processes(text: str) -> int:
    if text == "auto":
        return len(os.sched_getaffinity(0))
    if not text.isdigit():
        raise Unusable(f"-n {text}: give a number of processes, or auto")
    return max(1, int(text))


def _say(line: str) -> None:
    print(f"lockstep exhaust: {line}", file=sys.stderr, flush=True)


def _code(result: Result) -> int:
    if result.failing is not None or (result.found.refused and not result.found.held):
        return 1
    return 0 if result.found.held else 5


def _ended(trial: Trial, result: Result) -> Iterator[str]:
    """Tell the findings of a run, line by line; writes its certificate, or the script of the failure."""
    name, given, found = result.implementation.short, result.asked, result.found
    part = "" if given.shard == (1, 1) else " in part {} of {}".format(*given.shard)
    if result.failing is not None:
        yield from _failure(trial, given.size, result.failing)
        yield ""
        yield f"No smaller program fails{part}: {found.held:,} that come before it hold."
    elif found.held:
        yield f"{name}: all {found.held:,} programs up to size {given.size} hold{part}."
    elif found.refused:
        yield f"{name} refuses every program up to size {given.size}{part}, so nothing was checked."
    else:
        yield f"{name} claims no program up to size {given.size}{part}."
    for words, some in (("left out", found.left_out), ("refused", found.refused), ("excused", found.excused)):
        for why, count in some.most_common():
            yield f"  {words}: {count:,} programs: {why}"
    if result.failing is None and found.held:
        timed = f"those up to size {min(DELIVERED, given.size)} with every delivery of their collectives"
        yield f"  {found.runs:,} runs in {in_time(result.seconds)}, {timed}"
        yield f"  certificate: {write(result)}"


def _failure(trial: Trial, size: int, number: int) -> Iterator[str]:
    """The report of the program of that number."""
    (program,) = language.programs(size, number, number + 1)
    scenario = asked(trial, *program)
    assert not isinstance(scenario, str)
    try:
        check(trial, scenario, program[0].size <= DELIVERED)
    except LawBroken as broken:
        law, drawn, again = plainest(trial, scenario, broken)
        failure = Failure(drawn, again)
        yield report(law, trial, diagnose(trial, confirm(law, trial, failure) or failure, to_the_core=False))
    except Refused as refused:
        yield f"Program {number} failed, and is refused when it is run again: {refused}; {scenario!r}"
    else:
        yield f"Program {number} failed, and holds when it is run again: {scenario!r}"
