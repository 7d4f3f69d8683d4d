"""The measurements on a GPU, as far as they go without one: the model, resuming, the budget, the table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.benchmarks import gpu, kernels, model, results, roofline, timing
from lockstep.benchmarks.gpu import Run
from lockstep.benchmarks.shapes import even, mixed
from lockstep.benchmarks.units import NotDone, Unit
from lockstep.home import HOME

OF_PTX = {
    "move": "pack float32",
    "narrow": "unpack float32 to bfloat16, averaged",
    "widen": "unpack bfloat16 to float32, averaged",
    "scale float32": "scale float32",
    "scale bfloat16": "scale bfloat16",
    "norm float32": "partial norms float32",
    "norm bfloat16": "partial norms bfloat16",
    "whole norm": "whole norm",
    "sgd": "sgd",
    "adamw": "adamw",
}


def test_the_model_explains_what_was_measured() -> None:
    """To a tenth; a model without registers, look-ups or divisions is much further off."""
    for name, (program, measured) in model.MEASURED.items():
        assert abs(100 * model.share(program) - measured) < model.ACCURACY, name
    plain = model.Program(58.3 * 1024, 256, 254, lookups=0)
    assert abs(100 * model.share(plain) - model.MEASURED["pack 256 MiB, 1000 tensors"][1]) > 2 * model.ACCURACY


def test_the_model_has_the_registers_that_ptxas_gives() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "lockstep.impls.tests.compile_only"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert OF_PTX.keys() == model.REGISTERS.keys()
    for task, most in model.REGISTERS.items():
        assert found[OF_PTX[task]]["registers"] <= most, task


@pytest.mark.parametrize(("mib", "one", "thousand"), [(64, 0.85, 0.70), (256, 0.95, 0.85)])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("task", ["move", "scale", "average and clip", "cast", "sgd", "adamw"])
def test_the_model_promises_what_is_aimed_at(task: str, size: int, mib: int, one: float, thousand: float) -> None:
    elements = mib * 2**20 // size
    for shapes, aim in ((even(elements, 1), one), (mixed(elements, 1000), thousand)):
        assert model.promised(model.passes(task, size, shapes), 2 * mib * 2**20) > aim


def test_the_model_prints_what_was_measured_and_what_it_promises() -> None:
    lines = list(model.lines())
    assert all(any(name in line for line in lines) for name in model.MEASURED)
    assert sum("MiB float32" in line for line in lines) == 6


def test_mixed_sizes_are_very_different_and_add_up() -> None:
    shapes = [count for (count,) in mixed(10**7, 1000)]
    assert max(shapes) > 100 * min(shapes)
    assert sum(shapes) == pytest.approx(10**7, rel=1e-3)
    assert all(count % 8 == 0 for count in shapes)


def parts(calls: list[str], fails: list[str]):
    def unit(name: str) -> Unit:
        def run(left: float) -> str:
            calls.append(name)
            if name in fails:
                raise NotDone("no time")
            return "ok"

        return Unit(name, 1.0, run)

    return {"first": lambda run: iter([unit("a"), unit("b")]), "second": lambda run: iter([unit("c")])}


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fails = list[str](), ["b"]
    monkeypatch.setattr(gpu, "PARTS", parts(calls, fails))
    run = Run(tmp_path, dry=True)
    assert gpu.everything(run, ["first", "second"], None, again=False) == 3
    assert calls == ["a", "b", "c"]
    fails.clear()
    calls.clear()
    assert gpu.everything(run, ["first", "second"], None, again=False) == 0
    assert calls == ["b"]
    assert gpu.everything(run, ["first", "second"], None, again=True) == 0
    assert calls == ["b", "a", "b", "c"]


def test_what_does_not_fit_into_the_budget_is_told_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = list[str]()
    monkeypatch.setattr(gpu, "PARTS", parts(calls, []))
    assert gpu.everything(Run(tmp_path, dry=True), ["first"], 0.5, again=False) == 3
    assert calls == []
    assert "still missing: first: a\nstill missing: first: b" in capsys.readouterr().out


def test_figures_of_other_kernels_are_put_aside(tmp_path: Path) -> None:
    about = results.about(dry=True, code="one")
    results.Results(tmp_path, about).add("part", "unit", "ok", 1.0)
    assert not results.Results(tmp_path, about).lacks("part", "unit")
    assert results.Results(tmp_path, {**about, "code": "other"}).lacks("part", "unit")
    assert len(list(tmp_path.glob("results-of-*.json"))) == 1


def test_contests_are_measured_filed_and_tabled(tmp_path: Path) -> None:
    found = results.Results(tmp_path, results.about(dry=True, code="here"))
    units = [unit for unit in kernels.units((1 / 256,), 3) if "mixed" in unit.name or "masters" in unit.name]
    assert len(units) == 5
    for unit in units:
        found.add("kernels", unit.name, list(kernels.measure(unit)), 0.1)
    again = results.Results(tmp_path, found.about)
    lines = results.table(again)
    tasks = ["pack", "unpack", "average in place", "norm", "average and clip", "AdamW", "SGD with momentum"]
    assert all(any(task in line for line in lines) for task in tasks)
    assert all(contest["expected"] > 0 for kept in again.done["kernels"].values() for contest in kept["found"])
    plot = roofline.draw(again)
    assert plot is None or plot.stat().st_size > 10_000


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(NotDone, match="stopped after 1 s"):
        Run(tmp_path, dry=True).command("sleep", [sys.executable, "-c", "import time; time.sleep(60)"], 1.0)
    assert (
        Run(tmp_path, dry=True).command("fail", [sys.executable, "-c", "raise SystemExit(4)"], 60).startswith("FAILED")
    )


def test_medians_are_taken_over_rounds() -> None:
    took = timing.summed_up([(3.0, 1.0), (5.0, 2.0), (4.0, 9.0)], [])
    assert (took.graph, took.eager, took.host) == (None, 4.0, 2.0)


def test_without_a_gpu_the_script_says_so_in_one_line() -> None:
    command = [sys.executable, "-m", "lockstep.benchmarks.gpu"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(command, env=environment, cwd=HOME, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "needs a CUDA GPU" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
