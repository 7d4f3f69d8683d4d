"""`lockstep check` prints its own lines alone: none of pytest's on Ctrl-C, none of pytest-xdist's on its workers."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.properties.running.nothing_of_pytest import quieten, quieten_workers


class Terminal:
    """A terminal reporter as pytest has it, as far as it matters here."""

    def __init__(self, message: str) -> None:
        self.lines: list[str] = []
        self._keyboardinterrupt_memo = SimpleNamespace(reprcrash=SimpleNamespace(message=message))

    def write_sep(self, sep: str, title: str | None = None, **markup: Any) -> None:
        self.lines.append(f"{sep * 3} {title}")

    def _report_keyboardinterrupt(self) -> None:
        self.write_sep("!", self._keyboardinterrupt_memo.reprcrash.message)
        self.lines.append("(to show a full traceback on KeyboardInterrupt use --full-trace)")


@pytest.mark.parametrize("message", ["KeyboardInterrupt", "xdist.dsession.Interrupted: stopping after 1 failures"])
def test_an_interruption_is_told_by_the_summary_alone(message: str) -> None:
    terminal = Terminal(message)
    quieten(terminal)
    terminal._report_keyboardinterrupt()
    terminal.write_sep("!", "stopping after 1 failures")
    assert terminal.lines == []
    terminal.write_sep("=", "verdicts")
    assert terminal.lines == ["=== verdicts"]


def test_any_other_end_is_still_told() -> None:
    terminal = Terminal("Exit: the disk is full")
    quieten(terminal)
    terminal._report_keyboardinterrupt()
    assert terminal.lines


def test_pytest_has_the_methods_that_are_replaced() -> None:
    terminal = pytest.importorskip("_pytest.terminal").TerminalReporter
    assert {"write_sep", "_report_keyboardinterrupt"} <= {*vars(terminal)}
    workers = pytest.importorskip("xdist.dsession").TerminalDistReporter
    assert {"setstatus", "ensure_show_status"} <= {*vars(workers)}


def test_workers_begin_without_a_line_of_their_own() -> None:
    told: list[str] = []
    workers = SimpleNamespace(setstatus=told.append, ensure_show_status=lambda: told.append("bringing up nodes..."))
    quieten_workers(workers)
    workers.setstatus("gw0", 1, tests_collected=0)
    workers.ensure_show_status()
    assert told == []
