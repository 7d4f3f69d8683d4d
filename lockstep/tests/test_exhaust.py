"""`lockstep exhaust`: what it prints and writes, and its exit codes."""

import json
from pathlib import Path

import pytest

from lockstep import command

NAIVE = "lockstep.impls.naive:NaiveDataParallel"
WRONG = "lockstep.impls.hook:HookDataParallel"


def test_the_command_writes_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["exhaust", NAIVE, "--size", "5", "-n", "1", "--report", str(tmp_path)]
    command.main(told)
    shown = capsys.readouterr().out
    assert "NaiveDataParallel: all 5 programs up to size 5 hold." in shown
    (path,) = tmp_path.glob("*.json")
    assert str(path) in shown
    says = json.loads(path.read_text())
    assert (says["target"], says["bound"]["size"], says["programs"], says["held"]) == (NAIVE, 5, 10, 5)
    command.main(told)
    capsys.readouterr()
    assert json.loads(path.read_text())["hash"] == says["hash"]
    with pytest.raises(SystemExit) as ended:
        command.main(["exhaust", WRONG, "--size", "7", "-n", "1", "--report", str(tmp_path)])
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert "rank 1 reaches b, a" in shown
    assert "No smaller program fails: 19 that come before it hold." in shown
