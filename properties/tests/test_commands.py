"""What can be run as a command says what it does when it is asked, and does nothing else then."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("oracle", "worlds", "impls", "properties", "benchmarks")
COMMANDS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in PACKAGES
    for path in sorted((ROOT / "lockstep" / package).rglob("*.py"))
    if re.search(r'^if __name__ == "__main__":$', path.read_text(), re.MULTILINE)
    and path.name != "compile_only.py"  # which tests start, and which compiles for a GPU when it is imported
]


@pytest.mark.parametrize("module", COMMANDS)
def test_a_command_asked_for_help_gives_it_under_its_own_name(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert shown.startswith(f"usage: python -m {module.removesuffix('.__main__')} [-h]")
    assert not shown.split("\n\n")[1].startswith(("options:", "positional arguments:")), "it says what it does"
