"""What is fast to start stays so."""

import subprocess
import sys

from properties.tests.test_bad_input import ROOT


def test_who_draws_and_reports_waits_for_no_torch() -> None:
    """Whose import takes seconds, and is needed where ranks run only."""
    imports = "import sys, conftest, properties.reports.failure, properties.searching.search"
    asked = [sys.executable, "-c", f"{imports}; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(asked, cwd=ROOT, check=False).returncode == 0
