"""Scripts run on real processes, and start as a user's would."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.program import Scenario
from lockstep.properties.implementations import look_up
from lockstep.properties.script.whole import write_script
from lockstep.properties.tests.scripts import APART, EVERYTHING, HOOK_ORDER, ONE_OF_ONE, RUNS_OUT, lines
from lockstep.worlds.contract import World


@pytest.mark.parametrize(
    ("name", "scenario", "right"),
    [
        ("lockstep.impls.static_buckets:StaticBuckets", EVERYTHING, True),
        ("lockstep.impls.frameworks.torch_ddp:TorchDDPFindUnused", APART, True),
        ("lockstep.impls.frameworks.fsdp2:FSDP2", APART, True),
        ("lockstep.impls.zero1:Zero1", ONE_OF_ONE, True),
        ("lockstep.impls.faults.several_optimizers:KnowsTheLast", APART, False),
        ("lockstep.impls.frameworks.torch_ddp:TorchDDP", RUNS_OUT, True),
        ("lockstep.impls.faults.joined:DividesByAll", RUNS_OUT, False),
    ],
    ids=[
        "everything, right",
        "several optimizers, right",
        "several optimizers of shards, right",
        "one optimizer of one group, right",
        "several optimizers, wrong",
        "ranks that run out, right",
        "ranks that run out, wrong",
    ],
)
def test_scripts_say_on_real_processes_whether_all_is_right(
    gloo: World, name: str, scenario: Scenario, right: bool
) -> None:
    printed = lines(gloo, name, scenario)
    assert printed
    assert all(line.endswith(": right") for line in printed) == right


@pytest.mark.parametrize("stem", ["my-ddp", "2024_ddp", "copy", "torch"])
def test_a_script_takes_a_class_from_a_file_of_any_name(sim: World, tmp_path: Path, stem: str) -> None:
    (tmp_path / f"{stem}.py").write_text("from lockstep.impls.naive import NaiveDataParallel as MyDDP\n")
    printed = lines(sim, f"{tmp_path / stem}.py:MyDDP", HOOK_ORDER)
    assert len([line for line in printed if line.endswith(": right")]) == len(printed) > 0


def test_a_file_and_its_script_may_import_what_lies_beside_it(sim: World, tmp_path: Path) -> None:
    (tmp_path / "of_nobody_else.py").write_text("from lockstep.impls.naive import NaiveDataParallel\n")
    (tmp_path / "mine.py").write_text("from of_nobody_else import NaiveDataParallel as MyDDP\n")
    printed = lines(sim, f"{tmp_path / 'mine'}.py:MyDDP", HOOK_ORDER)
    assert len([line for line in printed if line.endswith(": right")]) == len(printed) > 0


def test_a_script_takes_a_class_from_a_module_that_no_statement_can_import(
    sim: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "our-ddp.py").write_text("from lockstep.impls.naive import NaiveDataParallel as MyDDP\n")
    monkeypatch.chdir(tmp_path)
    (implementation,) = look_up(["lockstep.impls.naive:NaiveDataParallel"], sim)
    path = write_script(replace(implementation, name="our-ddp:MyDDP"), HOOK_ORDER, "A headline.", tmp_path, "script")
    text = path.read_text().partition("\ninf, nan")[0] + "\nprint(MyDDP.__name__)\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.stdout == "NaiveDataParallel\n", done.stderr


@pytest.mark.parametrize(
    "headline", ["C:\\Users\\x", '"Quoted" and """more""""', "\\", "\0 \udc80 \t.", "Two\nlines, ä."]
)
def test_a_script_compiles_whatever_its_headline_says(sim: World, tmp_path: Path, headline: str) -> None:
    (implementation,) = look_up(["lockstep.impls.naive:NaiveDataParallel"], sim)
    path = write_script(implementation, HOOK_ORDER, headline, tmp_path, "script")
    told = ast.get_docstring(ast.parse(path.read_bytes()), clean=False)
    assert told is not None
    assert told.startswith(f"{headline}\n\nWritten by Lockstep")


def test_a_script_runs_under_torchrun(sim: World, tmp_path: Path) -> None:
    """Its exit code is 1 as long as a value is wrong. Once each: how a script starts and ends is the same for all, and
    each process takes seconds to import torch.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={HOOK_ORDER.world_size}"]
    for name, code, wrong in (("hook_order_buckets:HookOrderBuckets", 1, 4), ("static_buckets:StaticBuckets", 0, 0)):
        (implementation,) = look_up([f"lockstep.impls.{name}"], sim)
        path = write_script(implementation, HOOK_ORDER, "A headline.", tmp_path, "script")
        done = subprocess.run([*torchrun, str(path)], capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        assert done.stdout.count("WRONG") == wrong


def test_a_script_of_a_group_runs_under_torchrun(sim: World, tmp_path: Path) -> None:
    """With as many processes as it says."""
    (implementation,) = look_up(["lockstep.impls.faults.subgroups:DividesByTheWorld"], sim)
    alone = replace(HOOK_ORDER, world_size=1, program=(Backward(((0, 1),)), Finish()), outsiders=1)
    path = write_script(implementation, alone, "A headline.", tmp_path, "script")
    assert "torchrun --nproc-per-node=2" in path.read_text()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = subprocess.run([*torchrun, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert [line.partition(" is ")[0] for line in done.stdout.splitlines() if "WRONG" in line] == [
        "rank 0: the gradient of a",
        "rank 0: the gradient of b",
    ]
