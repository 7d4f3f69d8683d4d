"""`lockstep.check` in a process that goes on afterwards, and what it makes of whatever it is handed."""

import functools
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import lockstep
from lockstep.checking import CheckResult
from lockstep.impls.naive import NaiveAccumulation, NaiveDataParallel
from lockstep.oracle.program import NAMES
from lockstep.properties.implementations import Unusable
from lockstep.properties.ranks.cuda_stubs import TOLD, are_asked
from lockstep.properties.running.target import name_of
from lockstep.properties.tests import own_models, shapes
from lockstep.pytest_plugin import pytest_testnodedown
from lockstep.worlds.process_tree import Leftovers

LAW = "gradients_equal_the_mean"


class OfThisFile(NaiveDataParallel):
    """A class in a test's own module."""

    class Inside(NaiveDataParallel):
        """And one that stands in it."""


def made_here(divides: bool = True) -> type[nn.Module]:
    """A class that no other process can import."""

    class MadeHere(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module
            for parameter in module.parameters():
                dist.broadcast(parameter.data, src=0)

        def forward(self, *inputs: Any, **named: Any) -> Any:
            return self.module(*inputs, **named)

        def finish_gradient_synchronization(self) -> None:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size() if divides else 1

    return MadeHere


def test_a_class_that_others_can_import_is_named_as_they_import_it() -> None:
    assert name_of(NaiveDataParallel) == "lockstep.impls.naive:NaiveDataParallel"
    assert name_of("anywhere:Anything") == "anywhere:Anything"
    assert name_of(OfThisFile) == "lockstep.tests.test_checking:OfThisFile"
    assert name_of(OfThisFile.Inside) == "lockstep.tests.test_checking:OfThisFile.Inside"
    first, second = made_here(), made_here()
    names = {name_of(first), name_of(second)}  # a number tells them apart, which goes by what was named before
    assert len(names) == 2
    assert all(re.fullmatch(r"lockstep\.tests\.test_checking( \d+)?:MadeHere", name) for name in names)
    assert name_of(lambda module: module).endswith(":<lambda>")
    assert name_of(functools.partial(NaiveDataParallel)).endswith(":partial")


def test_a_class_made_in_a_function_is_checked_in_this_process() -> None:
    right = lockstep.check(made_here(), laws=LAW, examples=5, seed=1)
    assert right.passed
    right.raise_for_failures()
    (law,) = right.laws
    assert (law.law, law.world, law.verdict) == ("P1 gradients equal the mean over ranks", "sim", "holds")
    assert 1 <= law.examples <= 5
    assert re.fullmatch(
        r"<CheckResult of lockstep\.tests\.test_checking( \d+)?:MadeHere: all 1 laws hold>", repr(right)
    )


def test_a_failure_has_its_law_verdict_report_scenario_and_script(tmp_path: Any) -> None:
    wrong = lockstep.check(made_here(divides=False), laws=LAW, examples=5, seed=1, report=tmp_path / "scripts")
    assert not wrong.passed
    (failure,) = wrong.failures
    assert failure.law == "P1 gradients equal the mean over ranks"
    assert failure.verdict == "silently wrong"
    assert "the sum over ranks where the mean is due" in failure.report
    assert eval(failure.scenario, dict(NAMES)).world_size == 2
    assert failure.script is not None
    assert failure.script.parent == tmp_path / "scripts"
    assert failure.report in str(wrong)
    (defect,) = wrong.defects
    assert (defect.id, defect.verdict, defect.law) == ("D1", "silently wrong", failure.law)
    assert (defect.cause, defect.claim) == ("the plainest program", "")
    assert "broken by D1 on sim" in str(wrong)
    assert "<td>P1 gradients equal the mean over ranks</td>" in wrong._repr_html_()
    assert "&lt;" not in wrong._repr_html_().partition("<pre>")[0]
    with pytest.raises(lockstep.LawsBroken, match=re.escape(failure.report[:200])):
        wrong.raise_for_failures()


def test_claims_are_taken_in_the_place_of_those_that_are_declared() -> None:
    law = "a_window_that_is_dropped"
    assert [each.law for each in lockstep.check(NaiveAccumulation, laws=law, examples=2).laws] == [
        "P3 a window that is dropped halfway leaves no trace"
    ]
    declined = lockstep.check(NaiveAccumulation, laws=law, examples=2, claims={"drops_windows": False})
    assert declined.laws == ()


def test_a_model_of_the_users_own_is_the_only_one_that_laws_are_held_on() -> None:
    wrong = lockstep.check(own_models.Forgets, model=own_models.make, laws="P1", examples=3, seed=0)
    (law,) = wrong.laws
    assert law.law == "P1 a real model gets the mean gradient of the whole batch"
    assert "The first module whose gradient differs is wide." in " ".join(wrong.failures[0].report.split())
    right = lockstep.check(own_models.Whole, model=lambda: own_models.make(), laws="P1", examples=3, seed=0)
    assert [law.verdict for law in right.laws] == ["holds"]


def test_code_for_cuda_runs_where_stubs_are_asked_for_and_only_then() -> None:
    """In one process of the caller's, one after the other."""
    options: dict[str, Any] = {"laws": LAW, "examples": 3, "seed": 0}
    assert lockstep.check(shapes.ForCUDA, **options).passed == torch.cuda.is_available()
    told = lockstep.check(shapes.ForCUDA, cuda_stubs=True, **options)
    assert told.passed
    assert TOLD in str(told)
    assert not are_asked()


def refused(*arguments: Any, **options: Any) -> str:
    """The line in which a call is refused."""
    with pytest.raises(Unusable) as told:
        lockstep.check(*arguments, **options)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_what_cannot_be_checked_is_told_in_one_line() -> None:
    assert refused(3) == "3 cannot be called: give a class or a function that takes the module to wrap"
    assert "world='gloo' needs processes of its own" in refused(made_here(), world="gloo")
    assert "it is defined inside a function; put it into a module" in refused(made_here(), world=("sim", "gloo"))
    assert refused(NaiveDataParallel, world="mars").startswith("world='mars': give one of 'sim', 'gloo'")
    assert refused(NaiveDataParallel, laws="P99").startswith("laws='P99': no law has this number")
    assert refused(NaiveDataParallel, examples=0) == "examples=0: give a whole number, at least 1"
    assert refused(NaiveDataParallel, examples="3").startswith("examples='3': give a whole number")
    assert refused(NaiveDataParallel, seed="x") == "seed='x': give a whole number, or None"
    assert "that is a file; name a folder" in refused(NaiveDataParallel, report=__file__)
    assert "there is no claim 'magic'" in refused(NaiveDataParallel, claims={"magic": True})
    assert refused("nowhere:X") == "nowhere:X: there is no module 'nowhere' on sys.path"
    assert "cannot be called" in refused(lambda module: None, laws=LAW)
    assert refused(NaiveDataParallel, model=own_models.raises).startswith(
        "model=lockstep.properties.tests.own_models:raises: KeyError: 'no data'"
    )
    assert refused(made_here(), cuda_stubs=True) == (
        "cuda_stubs=True needs processes of its own: it is defined inside a function; put it into a module"
    )


def test_lockstep_has_the_names_that_it_says_and_no_others() -> None:
    assert lockstep.CheckResult is CheckResult
    assert {*lockstep.__all__} <= {*dir(lockstep)}
    with pytest.raises(AttributeError, match="module 'lockstep' has no attribute 'chek'"):
        _ = lockstep.chek


def test_the_children_of_a_process_that_nobody_supervises_are_its_own() -> None:
    """They are neither waited for, nor told as left behind."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        leftovers = Leftovers()
        assert leftovers.list() == ()
        child.communicate(b"\n")
        assert child.returncode == 0
    with subprocess.Popen(["true"]) as ended:
        leftovers = Leftovers()
        assert leftovers.list() == ()
        assert ended.wait() == 0


def test_a_worker_that_has_died_tells_nothing(pytestconfig: pytest.Config) -> None:
    """It has no output for the process that started it. That is no error of the run's."""
    pytest_testnodedown(SimpleNamespace(config=pytestconfig))
