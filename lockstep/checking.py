"""`lockstep.check`: hold a class against the laws from Python, in a script, a test or a notebook."""

import html
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.properties.defects.defect import Defect
from lockstep.properties.ranks.cuda_stubs import TOLD
from lockstep.properties.reports.failure import FOLDER
from lockstep.properties.reports.matrix import filed_by
from lockstep.properties.results import known as known_failures
from lockstep.properties.results import settled
from lockstep.properties.results.known import Known
from lockstep.properties.running.apart import Docket
from lockstep.properties.running.session import Held, Session
from lockstep.properties.running.summary import summary
from lockstep.properties.verdict import ERROR_IN_LOCKSTEP


class LawsBroken(AssertionError):
    """Some law does not hold. The message is the whole report."""


@dataclass(frozen=True)
class Failure:
    """One way in which a law is broken.

    ``law``: its number and its sentence. ``verdict``: how bad it is, such as "silently wrong". ``report``: what went
    wrong, for people. ``scenario``: the smallest program that shows it; `eval(scenario, NAMES)` makes it of the text,
    with `NAMES` of `lockstep.oracle.program`. ``script``: the file that shows it with torch alone; None where there is
    none.
    """

    law: str
    world: str
    verdict: str
    report: str
    scenario: str
    script: Path | None


@dataclass(frozen=True)
class LawResult:
    """The end of one law on one world: its verdict, and the number of examples. ``passed``: true also if all that
    fails is known.
    """

    law: str
    world: str
    verdict: str
    examples: int
    passed: bool


@dataclass(frozen=True)
class DefectFound:
    """One thing that is wrong, whatever laws it breaks.

    ``id``: "D1", "D2", ... in the order in which they were found. ``law``: that which its smallest program breaks.
    ``cause``: what programs need for it to show; those are set aside from then on. ``claim``: that which says just
    this, to be declined if it is not meant to be supported; empty: there is none. The rest: as of a `Failure`.
    """

    id: str
    law: str
    verdict: str
    cause: str
    claim: str
    report: str
    scenario: str
    script: Path | None


class CheckResult:
    """The result of `check`. ``defects``: each thing that is wrong, once. ``laws``: the end of each law. ``failures``:
    each way in which a law is broken, without the known ones. ``mended``: the entries of the file of known failures
    that fail no more.
    """

    def __init__(
        self,
        target: str,
        ends: Sequence[Any],
        defects: Sequence[Defect] = (),
        mended: Sequence[Known] = (),
        notes: Sequence[str] = (),
        complete: bool = True,
    ) -> None:
        self.target, self._ends, self._defects = target, ends, defects
        self.mended, self._notes, self._complete = tuple(mended), notes, complete
        self.defects = tuple(map(_defect, defects))
        self.laws = tuple(_result(end) for end in ends)
        self.failures = tuple(failure for end in ends for failure in _failures(end))

    @property
    def passed(self) -> bool:
        """True if every law that the target claims holds, but for known failures, and no known failure is mended."""
        return all(law.passed for law in self.laws) and not self.mended

    def raise_for_failures(self) -> None:
        """Raise LawsBroken, with the whole report, unless every law holds."""
        if not self.passed:
            raise LawsBroken(f"\n{self}")

    def __str__(self) -> str:
        filed = [each for end in self._ends if (each := filed_by(end)) is not None]
        others = [end for end in self._ends if not end.passed and not (filed_by(end) or {}).get("broken_by")]
        told = [*(f"{each.report}\n" for each in self.defects), *(f"{end.longrepr}\n" for end in others)]
        end = summary(filed, False, None, folded=True, defects=self._defects, complete=self._complete)
        end += settled.told(filed, self.mended)
        return "\n".join([*told, *self._notes, *end])

    def __repr__(self) -> str:
        broken = sum(not law.passed for law in self.laws)
        ended = f"{broken} of {len(self.laws)} laws are broken" if broken else f"all {len(self.laws)} laws hold"
        return f"<CheckResult of {self.target}: {ended}>"

    def _repr_html_(self) -> str:
        """The result in a notebook: a table of the laws, and the report of each failure to unfold."""
        rows = [
            f"<tr><td>{html.escape(law.law)}</td><td>{html.escape(law.world)}</td>"
            f"<td style='color:{'inherit' if law.passed else '#c00'}'>{html.escape(law.verdict)}</td>"
            f"<td style='text-align:right'>{law.examples}</td></tr>"
            for law in self.laws
        ]
        reports = [
            f"<details><summary>{html.escape(f'{each.law}: {each.verdict}')}</summary>"
            f"<pre>{html.escape(each.report)}</pre></details>"
            for each in self.failures
        ]
        head = "<tr><th>law</th><th>world</th><th>verdict</th><th>examples</th></tr>"
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{''.join(reports)}<table>{head}{''.join(rows)}</table>"


def check(
    target: str | Callable[..., Any],
    *,
    claims: Mapping[str, Any] | None = None,
    world: str | Sequence[str] = "sim",
    laws: str | Sequence[str] | None = None,
    examples: int | None = None,
    seed: int | None = None,
    report: str | Path = FOLDER,
    known: str | Path | None = None,
    model: str | Callable[..., Any] | None = None,
    cuda_stubs: bool = False,
) -> CheckResult:
    """Hold a class, or a function that makes the wrapper, against every law that it claims; try it on the others.

    ``target``: the class or function, or its name, "package.module:attribute" or "path/to/file.py:attribute".
    ``claims``: in place of its attribute of that name. ``world``: "sim", "gloo", "nccl", or several of them. ``laws``:
    those with this number, such as "P6", or with these words in their names; None: all. ``examples``: training programs
    drawn for each law on simulated ranks, and a tenth of them on real processes. ``seed``: draw the same programs each
    time. ``report``: the folder for the scripts of failures, made only where there is one to write. ``known``: a file
    of failures that are known, see `lockstep.properties.results.known`. ``model``: a function that makes a model of
    yours, or its name, as `--model` takes it: the laws on real models are held on that, and no others. ``cuda_stubs``:
    on a machine without a GPU, calls such as `torch.cuda.synchronize()` do nothing.

    Other processes import the target by its name. One that they cannot import, such as a class defined in a notebook,
    runs on simulated ranks in this process, where nothing ends it should it hang.

    Raises Unusable (a ValueError), in one line, for what cannot be put under test.
    """
    progress, entries = _Progress(), known_failures.read(known)
    with _TURN:
        session = Session(target, claims, world, laws, examples, seed, Path(report), model, cuda_stubs, progress.say)
        try:
            docket = Docket(tell=lambda defect: progress.say(f"{defect.id}: {defect.verdict}, {defect.words()}"))
            held = list(session.held(probed=True, docket=docket))
            ends = []
            for number, each in enumerate(held):
                progress.show(number, len(held), f"{each.number} {each.law}")
                ends.append(_end_of(each, entries))
            filed = [row for end in ends if (row := filed_by(end)) is not None]
            complete = laws is None and model is None
            mended = settled.mended(filed, entries, laws is None)
            notes = [TOLD] if cuda_stubs else []
            return CheckResult(session.implementation.name, ends, docket.ledger.defects(), mended, notes, complete)
        finally:
            progress.clear()
            session.close()


_TURN = threading.RLock()  # of several threads each waits for the other's check: to start a process concerns them all


def _end_of(held: Held, entries: Sequence[Known]) -> SimpleNamespace:
    """The end of a law in the shape of a pytest report; known failures pass."""
    filed: list[tuple[str, Any]] = []
    words, passed = "", True
    try:
        held.run(lambda name, value: filed.append((name, value)))
    except pytest.fail.Exception as failed:
        words, passed = str(failed.msg), False
    except pytest.skip.Exception:
        pass
    except Exception:
        words, passed = f"{ERROR_IN_LOCKSTEP}\n{traceback.format_exc()}", False
    ended = SimpleNamespace(when="call", user_properties=filed, longrepr=words, passed=passed, held=held)
    row = filed_by(ended)
    if isinstance(row, dict) and settled.settle(row, entries):
        ended.passed = True
    return ended


def _defect(found: Defect) -> DefectFound:
    told = found.filed
    script = Path(told["script"]) if told["script"] else None
    report = "\n\n".join(face["report"] for face in told["faces"])
    law = f"{found.number} {found.law}"
    return DefectFound(found.id, law, found.verdict, told["cause"], found.claim, report, told["scenario"], script)


def _result(end: Any) -> LawResult:
    filed = filed_by(end) or {}
    verdict, examples = filed.get("verdict", ERROR_IN_LOCKSTEP), filed.get("examples", 0)
    return LawResult(f"{end.held.number} {end.held.law}", end.held.world, verdict, examples, end.passed)


def _failures(end: Any) -> list[Failure]:
    law, filed = f"{end.held.number} {end.held.law}", filed_by(end) or {}
    if end.passed:
        return []
    if not filed.get("failures"):
        return [Failure(law, end.held.world, filed.get("verdict", ERROR_IN_LOCKSTEP), end.longrepr, "", None)]
    return [
        Failure(
            law,
            end.held.world,
            told["verdict"],
            told["report"],
            told["scenario"],
            Path(told["script"]) if told["script"] else None,
        )
        for told in filed["failures"]
    ]


class _Progress:
    """The progress of a check on one line of a terminal. Elsewhere only a law that takes very long is reported."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()

    def show(self, done: int, total: int, law: str) -> None:
        """Says which law is held now."""
        if self._on:
            print(f"\r\033[K{done} of {total} laws  {law[:90]}", end="", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Says how far a long law is."""
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Takes the line away."""
        if self._on:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
