"""Keep lines of pytest and of pytest-xdist off the terminal if Lockstep's own lines say the same."""

from typing import Any

LINE_OF_ALARM = "!"  # pytest draws with it the bars that end a run: "!!! KeyboardInterrupt !!!"


def quieten(terminal: Any) -> None:
    """Keep pytest's words on an interruption off the terminal. The summary of Lockstep says that a run was stopped.

    ``terminal``: the terminal reporter of pytest. It has no option for this, so two of its methods are replaced.
    """
    write_sep, report = terminal.write_sep, getattr(terminal, "_report_keyboardinterrupt", None)

    def without_alarm(sep: str, *arguments: Any, **markup: Any) -> None:
        if sep != LINE_OF_ALARM:
            write_sep(sep, *arguments, **markup)

    def unless_interrupted() -> None:
        crash = getattr(getattr(terminal, "_keyboardinterrupt_memo", None), "reprcrash", None)
        if report is not None and (crash is None or "Interrupt" not in crash.message):
            report()

    terminal.write_sep = without_alarm
    terminal._report_keyboardinterrupt = unless_interrupted


def quieten_workers(reporter: Any) -> None:
    """Keep "bringing up nodes..." off the terminal. The death of a worker is still reported.

    ``reporter``: the plugin of pytest-xdist that tells how far the workers are.
    """
    reporter.setstatus = reporter.ensure_show_status = lambda *_, **__: None
