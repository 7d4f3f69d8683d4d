"""A report can be written of whatever law a wrong implementation breaks, not only of the one that is named for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import test_checkpoints as checkpoints
from lockstep.properties import test_mean as mean
from lockstep.properties import test_models
from lockstep.properties import test_precision as precision
from lockstep.properties.catalogue import every_fault, every_law
from lockstep.properties.claims import Claims
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import described
from lockstep.properties.law import concerns, law_of, sentence
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.ranks import description
from lockstep.properties.reports.failure import IN_NO_VALUE, filed_failure, report, script_name
from lockstep.properties.reports.notes import on_claims
from lockstep.properties.searching.search import Failure, search
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

# A sum in place of the mean breaks most laws; and a stage that a law on saving or stepping needs.
NAMES = ("lockstep.properties.tests.user_code:SumsTheBuckets", "lockstep.properties.tests.user_code:SumsTheShards")


@pytest.mark.parametrize("name", NAMES)
def test_every_law_that_a_sum_breaks_is_reported(
    sim: World, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    trial, broken = trial_of(name, sim), 0
    for law in every_law().values():
        if concerns(law, trial.claims):
            for failure in search(law, trial, 5, seed_value=0, shrink=False).failures:
                text = report(law, trial, diagnose(trial, failure, to_the_core=False))
                assert trial.implementation.short in text
                assert sentence(law) in " ".join(text.split())
                broken += 1
    assert broken >= 15
    scripts = [script.name for script in tmp_path.glob("*.py")]
    assert scripts
    assert all(
        script.startswith(f"lockstep-properties-tests-user-code-{trial.implementation.short}-P") for script in scripts
    )


def test_a_state_that_is_saved_on_the_way_to_a_wrong_gradient_is_no_mystery(
    sim: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run is done over, part by part, to say where a value came from."""
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    trial, law = trial_of(NAMES[0], sim), "test_saving_changes_nothing"
    (saving,) = (each for name, each in every_law().items() if name.endswith(law))
    (failure, *_) = search(saving, trial, 100, seed_value=0).failures
    assert "Came from" in report(saving, trial, diagnose(trial, failure, to_the_core=False))


def test_a_report_and_its_script_say_which_step_is_skipped(
    sim: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    name = "lockstep.impls.faults.scaling:SkipsOnRankZero"
    trial = trial_of(name, sim)
    law = law_of(precision.test_ranks_agree_on_overflows_and_on_the_loss_scale)
    (failure, *_) = search(law, trial, 100, seed_value=0).failures
    skipped = "step: to be skipped, as a gradient overflowed on rank 0; the loss scale becomes 1"
    assert f"\n   2  {skipped}\n" in report(law, trial, diagnose(trial, failure, to_the_core=False))
    (script,) = tmp_path.glob("*.py")
    assert f"\n# {skipped}\n" in script.read_text()


@pytest.mark.parametrize(
    ("name", "said", "written"),
    [
        (
            "lockstep.impls.faults.around:PreparesInItsForward",
            "\n   0  backward: every rank reaches a"
            "\n                of a forward of the model itself, around what wraps it\n   1  ",
            "\nmodel(coefficients[rank], orders[rank]).backward()\n",
        ),
        (
            "lockstep.impls.faults.relocated:KnowsParametersByAddress",
            ".\n   0  move: the model's parameters, gradients and buffers move to new memory\n   1  backward: ",
            " move to new memory\nmodel._apply(torch.clone)  # to new memory, as .to(device) does\n\n# backward: ",
        ),
        (
            "lockstep.impls.faults.beside:KnowsGradientsByName",
            "a window ahead and with\n    gradients of the other sign, takes turns with it, right after it.\n",
            "\nfor _ in itertools.zip_longest(this(), other()):  # they take turns\n    pass\n",
        ),
    ],
)
def test_a_report_and_its_script_say_what_is_run_otherwise(
    sim: World, name: str, said: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    trial = trial_of(name, sim)
    law = every_law()[every_fault()[name].killed_by[0]]
    (failure, *_) = search(law, trial, 100, seed_value=0).failures
    text = report(law, trial, diagnose(trial, failure, to_the_core=False))
    assert said in text
    (script,) = tmp_path.glob("*.py")
    assert written in script.read_text()


def test_a_report_says_that_no_value_shows_what_is_on_the_wire_and_what_goes_wrong_by_itself(
    sim: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    told = {}
    for name in (
        "lockstep.impls.faults.precision:ReducesInBfloat16",
        "lockstep.impls.hook_order_buckets:HookOrderBuckets",
    ):
        wire = law_of(precision.test_gradients_travel_in_their_own_dtype_or_a_wider_one)
        law = wire if "precision" in name else law_of(checkpoints.test_saving_changes_nothing)
        (failure, *_) = search(law, trial := trial_of(name, sim), 100, seed_value=0).failures
        told[name] = " ".join(filed_failure(law, trial, diagnose(trial, failure))["report"].split())
    wire_told, saved = told.values()
    assert IN_NO_VALUE in wire_told
    assert "Alone:" not in wire_told
    assert IN_NO_VALUE not in saved
    assert "without a partial save or load, so that need not be the cause." in saved
    assert "(Backward(((0, 1), (1, 0))), Finish())" in saved.partition("Alone:")[2].partition("See it:")[0]


def test_undeclared_code_is_told_that_a_model_gives_its_outputs_in_a_mapping(sim: World) -> None:
    law = law_of(test_models.test_a_real_model_gets_the_mean_gradient_of_the_whole_batch)
    trial = trial_of("lockstep.impls.naive:NaiveAccumulation", sim)
    assumed = replace(trial.implementation, undeclared=("keyword_inputs",), claims=Claims(keyword_inputs=True))
    trial = replace(trial, implementation=assumed)
    assert 'does not declare "keyword_inputs", so Lockstep assumes it.' in " ".join(
        on_claims(law, trial, ModelScenario(named=True))
    )
    assert on_claims(law, trial, ModelScenario()) == []


class MeansElsewhere(nn.Module):
    """Its means are not where a caller would look for gradients, and nothing that it offers clips or steps them."""

    claims = {"stage": 2, "adds_to_averages": False, "accumulation": False}

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped, self.named = module, dict(module.named_parameters())
        self.means: dict[str, torch.Tensor] = {}
        for parameter in self.named.values():
            dist.broadcast(parameter.data, src=0)

    def forward(self, *inputs: Any) -> Any:
        return self.wrapped(*inputs)

    def sync_gradients(self) -> None:
        for name, parameter in self.named.items():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                self.means[name], parameter.grad = parameter.grad / dist.get_world_size(), None

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.means.clear()

    def full_parameters(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach() for name, parameter in self.named.items()}

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        return {name: self.means.get(name) for name in self.named}


def test_a_report_says_what_the_caller_did_and_that_the_law_is_not_the_reason(
    sim: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    trial = trial_of("lockstep.properties.tests.test_reports:MeansElsewhere", sim)
    for law, method, otherwise in (
        ("test_clipping_scales_every_gradient_by_one_factor", "clip_grad_norm_()", False),
        ("test_saving_changes_nothing", "make_optimizer()", True),
    ):
        (failure, *_) = search(every_law()[law], trial, 100, seed_value=0).failures
        text = " ".join(filed_failure(every_law()[law], trial, diagnose(trial, failure))["report"].split())
        assert f"has full_gradients() but no {method}, so the training loop does that with p.grad of the" in text
        assert ("the program fails in the same way without" in text) is otherwise


def test_a_missing_gradient_without_elements_is_reported(
    sim: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no element whose contributions could be told."""
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", tmp_path)
    name = "lockstep.impls.faults.unused:EmptyBucketsStayHome"
    trial, law = trial_of(name, sim), law_of(mean.test_gradients_equal_the_mean_over_ranks)
    empty = Scenario(2, (Parameter((1,)), Parameter((0,))), (Backward(((0, 1), (0,))), Finish()), bucket_cap=1)
    with pytest.raises(SilentlyWrong) as broken:
        law.check(trial, empty)
    text = report(law, trial, diagnose(trial, Failure(empty, broken.value), to_the_core=False))
    assert "b.grad[0] is None where it must be a float32 array of shape (0,)" in " ".join(text.split())
    assert "Came from" not in text


def test_no_script_overwrites_that_of_another_law_world_or_implementation(sim: World, gloo: World) -> None:
    """Nor that of a class of the same name, in a file of the same name, in another folder or package."""
    implementation = described(NAMES[0], description.describe(NAMES[0]))
    far = "/".join(["somewhere far away"] * 20)
    places = (
        "my_ddp",
        "one.my_ddp",
        "other/my_ddp.py",
        f"{Path.cwd()}/my_ddp/here.py",
        f"one/{far}.py",
        f"two/{far}.py",
    )
    called_alike = [replace(implementation, name=f"{place}:MyDDP") for place in places]
    names = [
        script_name(law, Trial(each, world), "silently wrong")
        for each in (implementation, *called_alike)
        for law in every_law().values()
        for world in (sim, gloo)
    ]
    assert len(set(names)) == len(names)
    assert "my-ddp-here-MyDDP-P1-gradients-equal-the-mean-over-ranks-silently-wrong" in names
    assert max(map(len, names)) < 200  # file systems take 255


def test_what_is_filed_of_a_failure_says_where_its_script_is(
    sim: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the report breaks the line within its path; and that there is none, where it cannot be written."""
    folder = tmp_path / " ".join(["a folder with a long name"] * 5)
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", folder)
    trial = trial_of(NAMES[0], sim)
    law = law_of(mean.test_gradients_equal_the_mean_over_ranks)
    failure = search(law, trial, 15, seed_value=0, shrink=False).failures[0]
    filed = filed_failure(law, trial, diagnose(trial, failure))
    path = filed["script"]
    assert filed["diagnosis"]["guess"] == "the sum over ranks where the mean is due"
    assert f"A guess:   {filed['diagnosis']['guess']}." in filed["report"]
    assert [path] == list(map(str, folder.glob("*.py")))
    monkeypatch.setattr("lockstep.properties.reports.failure.FOLDER", Path(path) / "in a file")
    filed = filed_failure(law, trial, diagnose(trial, failure))
    assert filed["script"] == ""
    assert "the script could not be written: " in " ".join(filed["report"].split())
