"""Run all programs up to a size, portion by portion, in several processes, the smallest first, with a record."""

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from lockstep.properties import soundness
from lockstep.properties.exhausting import language
from lockstep.properties.exhausting.portion import SIZE, Found, look
from lockstep.properties.implementations import Implementation, Unusable, try_out
from lockstep.properties.running.bench import Bench
from lockstep.properties.running.record import Record
from lockstep.properties.running.sources import digest
from lockstep.properties.running.where import decide
from lockstep.properties.trial import Trial
from lockstep.worlds import process

DEFAULT_SIZE = 10  # 59,336 programs up to this size
TELL_EVERY = 30.0  # seconds
RECORD = "every program"  # replaces the seed in the record, so that a record of drawn programs is not continued

Portion: TypeAlias = tuple[int, int, int]  # its number, its first program, and the one after its last program
# The last item is the number of the failing program, if there is one.
Seen: TypeAlias = tuple[Portion, Found, int | None]


@dataclass(frozen=True)
class Asked:
    """The request of a run. Raises Unusable with a message of one line.

    - ``shard``: (i, n) for the i-th of n parts, counted from 1.
    - ``processes``: 1 uses this process alone.
    - ``record``: the folder in which passed portions are kept.
    - ``report``: the folder for scripts and certificates; None: the default one.
    """

    target: str
    size: int
    processes: int = 1
    record: Path | None = None
    shard: tuple[int, int] = (1, 1)
    report: Path | None = None

    def __post_init__(self) -> None:
        if self.size < language.LEAST:
            raise Unusable(f"--size {self.size}: the smallest program has {language.LEAST} parts")
        if self.report is not None and self.report.exists() and not self.report.is_dir():
            raise Unusable(f"--report {self.report}: that is a file; name a folder for scripts and certificates")

    def portions(self) -> list[Portion]:
        """The portions of this part of the run, the smallest programs first."""
        (part, parts), count = self.shard, language.count(self.size)
        begins = enumerate(range(0, count, SIZE))
        return [(number, begin, min(begin + SIZE, count)) for number, begin in islice(begins, part - 1, None, parts)]


def shard(text: str | None) -> tuple[int, int]:
    """Parse the value of `--shard`. Raises Unusable."""
    match = re.fullmatch(r"(\d+)/(\d+)", text or "1/1")
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise Unusable(f"--shard {text}: write I/N, with I from 1 to N, such as 2/4")
    return int(match[1]), int(match[2])


@dataclass
class Result:
    """The result of a run so far.

    ``programs``: the number of programs in this part. ``seen``: the number processed so far, including those left out.
    ``failing``: the number of the first program that fails.
    """

    implementation: Implementation
    asked: Asked
    programs: int
    seen: int = 0
    found: Found = field(default_factory=Found)
    failing: int | None = None
    seconds: float = 0.0


class Exhausting:
    """A run on one target with simulated ranks. `close` ends every process that it has started. Raises Unusable."""

    def __init__(self, asked: Asked, say: Callable[[str], None]) -> None:
        self._asked, self._say = asked, say
        self._record = None if asked.record is None else Record(asked.record)
        if self._record is not None:
            self._record.begin(RECORD)
            self._record.sources(asked.target)  # before it is imported
        self._bench = bench(asked)
        try:
            (self.implementation,) = self._bench.implementations
            claims = self.implementation.claims
            if claims.kernels or claims.collectives or claims.of_one_kind:
                kind = "kernels" if claims.kernels else "wrappers of collectives" if claims.collectives else "a rule"
                raise Unusable(f"{asked.target}: it is {kind}, which train by no program; use `lockstep check`")
            if claims.steps_in_backward:
                raise Unusable(f"{asked.target}: its backward steps, so that no gradient is seen; use `lockstep check`")
            try_out([self.implementation], self._bench.world("sim"))
            soundness.check(self._bench.world("sim"), language.RANKS)
        except BaseException:
            self.close()
            raise
        self.trial = trial_of(self._bench, asked)
        self._of = f"{asked.target} {digest(f'{self.implementation} {self.trial.claims}')}"
        portions = asked.portions()
        self.result = Result(self.implementation, asked, sum(end - begin for _, begin, end in portions))
        self._portions = portions

    def run(self) -> Result:
        """Run all programs, or all up to the first that fails. If interrupted, ``result`` holds the results so far."""
        result, since = self.result, time.monotonic()
        kept = {portion: found for portion in self._portions if (found := self._kept(portion)) is not None}
        done = dict(kept)
        for found in kept.values():
            self._count(found)
        last, begun = since, result.seen
        try:
            for portion, found, failing in self._look([each for each in self._portions if each not in kept]):
                done[portion] = found
                self._count(found)
                if failing is not None:
                    result.failing = min(failing, result.failing or failing)
                else:
                    self._keep(portion, found)
                now = time.monotonic()
                if now - last >= TELL_EVERY and result.failing is None:
                    last = now
                    self._say(told(result.seen, result.programs, now - since, result.seen - begun))
        finally:
            result.seconds = time.monotonic() - since
        texts = (done[portion].digest for portion in self._portions if portion in done)
        result.found.digest = sha256("\n".join(texts).encode()).hexdigest()
        return result

    def close(self) -> None:
        """End every process."""
        self._bench.close()

    def _count(self, found: Found) -> None:
        self.result.found.add(found)
        self.result.seen += found.held + sum((found.left_out + found.refused + found.excused).values())

    def _look(self, portions: list[Portion]) -> Iterator[Seen]:
        if self._asked.processes > 1 and len(portions) > 1:
            yield from in_processes(self._asked, portions)
            return
        for portion in portions:
            found, failing = look(self.trial, *portion[1:], self._asked.size)
            yield portion, found, failing
            if failing is not None:
                return

    def _kept(self, portion: Portion) -> Found | None:
        if self._record is None:
            return None
        kept = self._record.done(self._of, portion[0], self._asked.target)
        return Found.of_json(kept["found"]) if kept.get("end") == portion[2] else None

    def _keep(self, portion: Portion, found: Found) -> None:
        if self._record is not None:
            self._record.keep(self._of, portion[0], self._asked.target, {"end": portion[2], "found": found.as_json()})


def told(seen: int, programs: int, seconds: float, here: int) -> str:
    """The progress of a run, and an estimate of its remaining time.

    ``here``: the number of programs run in these seconds.
    """
    left = f", about {in_time(seconds * (programs - seen) / here)} to go" if here else ""
    return f"{seen:,} of {programs:,} programs in {in_time(seconds)}{left}"


def in_time(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def bench(asked: Asked) -> Bench:
    """The bench with the target on simulated ranks. Raises Unusable."""
    return Bench([asked.target], decide(["sim"], None, False, 1, False), report=asked.report)


def trial_of(its: Bench, asked: Asked) -> Trial:
    """The target on simulated ranks. Its failures are run again on gloo."""
    (implementation,) = its.implementations
    return Trial(implementation, its.world("sim"), lambda: its.world("gloo"), report=asked.report)


def in_processes(asked: Asked, portions: Iterable[Portion]) -> Iterator[Seen]:
    """The result of each portion as it ends.

    Once a program fails, only portions with smaller programs are still run.
    """
    todo, running = iter(portions), dict[Future[tuple[Found, int | None]], Portion]()
    first: int | None = None
    pool = ProcessPoolExecutor(asked.processes, multiprocessing.get_context("spawn"), _begin, (os.getpid(),))
    try:
        while True:
            wanted = 2 * asked.processes - len(running) if first is None else 0
            for portion in islice(todo, wanted):
                running[pool.submit(_look, asked, portion)] = portion
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                portion = running.pop(future)
                found, failing = future.result()
                if failing is not None:
                    first = failing if first is None else min(first, failing)
                yield portion, found, failing
            for future in [each for each, portion in running.items() if first is not None and portion[1] > first]:
                future.cancel()
                del running[future]
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Prepare a process of the pool. It ignores Ctrl-C; the main process ends it after its portion."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.end_with_parent()
    if os.getppid() != parent:  # the main process has ended already
        os._exit(1)


_trials: dict[Asked, Trial] = {}  # in a process of the pool, which ends together with all that it has started


def _look(asked: Asked, portion: Portion) -> tuple[Found, int | None]:
    if asked not in _trials:
        _trials[asked] = trial_of(bench(asked), asked)
    return look(_trials[asked], *portion[1:], asked.size)
