"""What is fast to start stays so."""

import subprocess
import sys

import pytest

from lockstep.properties.tests.test_bad_input import ROOT

MODULES = ("pytest_plugin", "properties.reports.failure", "properties.searching.search", "checking", "command")


@pytest.mark.parametrize("module", MODULES)
def test_who_draws_and_reports_waits_for_no_torch(module: str) -> None:
    """Whose import takes seconds, and is needed where ranks run only."""
    asked = [sys.executable, "-c", f"import sys, lockstep.{module}; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(asked, cwd=ROOT, check=False).returncode == 0


def test_lockstep_itself_and_its_help_wait_for_nothing_at_all() -> None:
    """Neither the package nor the first page of the command's help imports a law, NumPy or pytest."""
    heavy = "{'torch', 'numpy', 'hypothesis', 'pytest'} & {*sys.modules}"
    asked = f"import sys, lockstep.command; lockstep.command.first_page().format_help(); sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", asked], cwd=ROOT, check=False).returncode == 0
