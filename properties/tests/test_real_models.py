"""The laws of real models themselves: what they can see, what they draw, and what their reference is worth."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.oracle import lattice
from lockstep.properties import test_models
from lockstep.properties.claims import Claims
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.judging.judge import same_bits
from lockstep.properties.law import law_of
from lockstep.properties.models import data, exact, modules
from lockstep.properties.models.draws import DENSE
from lockstep.properties.models.partings import partings
from lockstep.properties.models.proved import expect, unseen
from lockstep.properties.models.rank import backward, batch_of, forward
from lockstep.properties.models.run import run
from lockstep.properties.models.scenario import EXACT, MODELS, SPARSE, ModelScenario
from lockstep.properties.ranks.probes import to_numpy
from lockstep.properties.reports.failure import filed_failure, report
from lockstep.properties.reports.real_models import again
from lockstep.properties.reports.whereabouts import from_here
from lockstep.properties.searching.search import Failure
from lockstep.properties.searching.witnesses import unwitnessed
from lockstep.properties.strategies.independent import sample
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import Crashes, SilentlyWrong
from lockstep.worlds.contract import Job, Outcome, World

NAIVE = "lockstep.impls.naive:NaiveAccumulation"
MEAN = law_of(test_models.test_a_real_model_gets_the_mean_gradient_of_the_whole_batch)
ROUNDING = [
    ModelScenario(model, world_size, (1, 0), heads=(1, 2, 3, 3, 1)[:world_size] if model == "two heads" else ())
    for model in MODELS
    for world_size in (2, 3, 5)
    if model not in EXACT
]


@pytest.mark.parametrize("scenario", ROUNDING, ids=repr)
def test_no_missing_doubled_or_misscaled_contribution_could_hide_in_the_intervals(
    sim: World, scenario: ModelScenario
) -> None:
    twin = trial_of("lockstep.impls.twins.models:GathersAndAdds", sim)
    for averaging in ("sum then divide", "multiply by reciprocal then sum"):
        expected = expect(twin, scenario, run(twin, scenario).observations[0])
        assert len(expected.terms) == 2
        assert unseen(expected, averaging, scenario.dtype) == []


def test_what_ranks_see_is_not_gathered_for_each_micro_batch(sim: World) -> None:
    """Each takes what training takes of it, in forward and in backward; a look would hide what is stale."""
    zero3, model = trial_of("lockstep.impls.zero3:Zero3", sim), modules.build(ModelScenario(), 0)
    units = sum(bool([*module.parameters(recurse=False)]) for module in model.modules())
    one, four = (run(zero3, ModelScenario(local=(local,))).outcome for local in (0, 3))
    for before, after in zip(one, four, strict=True):
        gathers = [sum(call.operation == "all_gather" for call in each.collectives) for each in (before, after)]
        assert gathers[1] - gathers[0] == 3 * 2 * units > 0


def test_a_contribution_that_is_smaller_than_rounding_is_said_to_be_unseen(sim: World) -> None:
    scenario = ModelScenario("tied", 3)
    naive = trial_of(NAIVE, sim)
    expected = expect(naive, scenario, run(naive, scenario).observations[0])
    ((first, second, third),) = expected.terms
    small = type(third)(third.low * 2.0**-40, third.high * 2.0**-40)
    expected.terms[0] = [first, second, small]
    assert unseen(expected, "sum then divide", "float32") == [
        "step 0: rank 2 is missing",
        "step 0: rank 2 counts twice",
    ]


@pytest.mark.parametrize(
    "scenario",
    [
        ModelScenario(),
        ModelScenario(world_size=3, local=(1, 0), seed=2),
        ModelScenario(frozen="first"),
        ModelScenario(frozen="second"),
        ModelScenario(local=(0, 1), frozen="second", thaws=1),
        ModelScenario(local=(0, 0), frozen="first", thaws=1),
        ModelScenario(SPARSE),
        ModelScenario(SPARSE, world_size=3, local=(1, 0), seed=2, uneven=True),
        ModelScenario(SPARSE, local=(0, 1), frozen="second", thaws=1),
    ],
    ids=repr,
)
def test_a_model_in_integers_is_what_autograd_makes_of_the_whole_batch_in_one_process(
    scenario: ModelScenario,
) -> None:
    """In float64, all samples of all ranks in one forward, with all zeros in the gradient of a table."""
    gradients, parameters = exact.train(scenario, "sum then divide")
    model = modules.build(scenario, 0).double()
    for table in (each for each in model.modules() if isinstance(each, nn.Embedding)):
        table.sparse = False
    optimizer = modules.optimizer(scenario, model)
    number = 0
    for step, count in enumerate(scenario.local):
        batches = [
            data.batch(scenario, rank, each)
            for rank in range(scenario.world_size)
            for each in range(number, number + count + 1)
        ]
        number += count + 1
        whole = {
            name: torch.from_numpy(np.concatenate([batch[name] for batch in batches]))
            for name in ("inputs", "coefficients")
        }
        whole = {name: each.double() if each.is_floating_point() else each for name, each in whole.items()}
        optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            frozen = scenario.frozen != "" and name.startswith(scenario.frozen)
            parameter.requires_grad_(not frozen or 0 < scenario.thaws <= step)
        (modules.loss(scenario, model(whole["inputs"]), whole, 3) / scenario.world_size).backward()
        for parameter, wanted in zip(model.parameters(), gradients[step], strict=True):
            assert (parameter.grad is None) == (wanted is None)
            if parameter.grad is not None and wanted is not None:
                assert np.array_equal(parameter.grad.numpy(), lattice.to_float(wanted))
        optimizer.step()
        for parameter, wanted in zip(model.parameters(), parameters[step], strict=True):
            assert np.array_equal(parameter.detach().numpy(), lattice.to_float(wanted))


def test_no_two_ranks_have_the_same_batch_values_or_random_numbers() -> None:
    for model in MODELS:
        scenario = ModelScenario(model, heads=(1, 1) if model == "two heads" else ())
        mine, yours = (data.batch(scenario, rank, 0)["inputs"] for rank in (0, 1))
        assert not np.array_equal(mine, yours)
        first, second = (next(modules.build(scenario, rank).parameters()) for rank in (0, 1))
        assert not torch.equal(first, second)


@pytest.mark.parametrize("model", [model for model in DENSE if model != "moving average"])
def test_what_is_saved_and_loaded_goes_on_with_the_very_bits(sim: World, model: str) -> None:
    heads = (3, 3) if model == "two heads" else ()
    scenario = ModelScenario(model, local=(0, 1), heads=heads, optimizer="SGD" if model == "mlp" else "Adam")
    saved, through = (run(trial_of(NAIVE, sim), each).observations for each in (replace(scenario, saved=1), scenario))
    for mine, other in zip(saved, through, strict=True):
        for kind in ("gradients", "parameters", "buffers"):
            for one, two in zip(mine[kind], other[kind], strict=True):
                assert all(same_bits(*pair) for pair in zip(one, two, strict=True))


def test_a_buffer_that_is_in_no_state_dict_begins_once_more(sim: World) -> None:
    """As rank 0's: with zeros, of which the first forward makes half of the mean of its inputs."""
    scenario = ModelScenario("moving average", local=(0, 0), saved=1)
    for rank, seen in enumerate(run(trial_of(NAIVE, sim), scenario).observations):
        inputs = torch.from_numpy(data.batch(scenario, rank, 1)["inputs"])
        assert np.array_equal(seen["buffers"][1][0], (inputs.mean(0) / 2).numpy())


def test_an_evaluation_gives_what_the_model_gives_by_itself(sim: World) -> None:
    scenario = ModelScenario("transformer", evaluated=1)
    for rank, seen in enumerate(run(trial_of(NAIVE, sim), scenario).observations):
        model = modules.build(scenario, 0).eval()
        with torch.no_grad():
            for parameter, values in zip(model.parameters(), seen["parameters"][0], strict=True):
                parameter.copy_(torch.from_numpy(values))
            (outputs,) = seen["outputs"][0]
            assert np.array_equal(outputs, model(torch.from_numpy(data.batch(scenario, rank, 1)["inputs"])).numpy())


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_outputs_in_a_class_of_their_own_have_the_same_loss(model: str, named: bool) -> None:
    scenario = ModelScenario(model, heads=(3, 3) if model == "two heads" else (), named=named)
    batch, losses = batch_of(scenario, 0, 0), []
    for which in (scenario, replace(scenario, classed=True)):
        torch.manual_seed(0)
        outputs = forward(which, modules.build(which, 0), batch["inputs"])
        assert isinstance(outputs, Mapping) == named
        assert isinstance(outputs[modules.OUTPUTS] if named else outputs, modules.Given) == which.classed
        losses.append(modules.loss(which, outputs, batch, 3).item())
    assert losses[0] == losses[1]


@pytest.mark.parametrize("model", MODELS)
def test_what_is_changed_in_place_has_the_same_loss_and_gradients(model: str) -> None:
    scenario, found = ModelScenario(model, heads=(3, 3) if model == "two heads" else ()), []
    for which in (scenario, replace(scenario, in_place=True)):
        torch.manual_seed(0)
        built = modules.build(which, 0)
        backward(which, built, 0, 0)
        found.append([parameter.grad for parameter in built.parameters()])
    assert all(same_bits(*map(to_numpy, pair)) for pair in zip(*found, strict=True))


def test_fsdp2_loses_its_hook_where_a_view_is_changed_in_place(gloo: World) -> None:
    """A finding, on real processes (docs/findings): where it holds again, the claim may come back."""
    under_test = trial_of("lockstep.impls.frameworks.fsdp2:FSDP2", gloo)
    assert not under_test.claims.in_place
    MEAN.check(under_test, ModelScenario("transformer"))
    with pytest.raises(Crashes, match="storage"):
        MEAN.check(under_test, ModelScenario("transformer", in_place=True))


def test_a_module_inside_gives_a_class_too() -> None:
    scenario = ModelScenario("two heads", heads=(3, 3), classed=True)
    given: list[object] = []
    model = modules.build(scenario, 0)
    model.get_submodule("fork").register_forward_hook(lambda module, inputs, outputs: given.append(outputs))
    forward(scenario, model, batch_of(scenario, 0, 0)["inputs"])
    assert [type(each) for each in given] == [modules.Given]


def test_ddp_with_a_static_graph_synchronizes_nothing_where_outputs_are_in_a_class(gloo: World) -> None:
    """A finding, on real processes (docs/findings): where it holds again, the claim may come back."""
    under_test = trial_of("lockstep.impls.frameworks.torch_ddp:TorchDDPStaticGraph", gloo)
    assert not under_test.claims.output_classes
    MEAN.check(under_test, ModelScenario())
    with pytest.raises(SilentlyWrong, match="gradients are not the mean over ranks"):
        MEAN.check(under_test, ModelScenario(classed=True))


def test_means_of_single_micro_batches_may_be_added_up_where_that_is_claimed(sim: World) -> None:
    """In this run they round otherwise than a mean of sums."""
    scenario = ModelScenario("batch norm", local=(1,))
    MEAN.check(twin := trial_of("lockstep.impls.twins.reductions:ReducesEveryMicroBatch", sim), scenario)
    twin = replace(twin, implementation=replace(twin.implementation, claims=replace(twin.claims, silent_no_sync=True)))
    with pytest.raises(SilentlyWrong):
        MEAN.check(twin, scenario)


def test_who_scales_the_loss_is_right_on_the_perceptron_and_says_that_other_models_round_otherwise(sim: World) -> None:
    twin = trial_of("lockstep.impls.twins.models:DividesTheLoss", sim)
    MEAN.check(twin, ModelScenario(world_size=3, local=(1, 0)))
    with pytest.raises(SilentlyWrong) as broken:
        MEAN.check(twin, scenario := ModelScenario("transformer", 3))
    told = " ".join(report(MEAN, twin, diagnose(twin, Failure(scenario, broken.value), to_the_core=False)).split())
    assert 'If your class scales the loss or compiles forward, claim "plain_bits": False.' in told
    assert {each.model for each in sample(MEAN.draws(twin.claims), 20)} == {"mlp"}


def test_a_difference_of_more_than_half_of_the_digits_assumes_nothing(sim: World) -> None:
    fault = trial_of("lockstep.impls.faults.models:DividesOnceAUse", sim)
    with pytest.raises(SilentlyWrong) as broken:
        MEAN.check(fault, scenario := ModelScenario("transformer", twice=True))
    assert "Assumed" not in report(MEAN, fault, diagnose(fault, Failure(scenario, broken.value), to_the_core=False))


def test_what_fails_of_one_run_has_one_cause_and_what_begins_wrong_is_the_plainest(sim: World) -> None:
    fault, scenario = (
        trial_of("lockstep.impls.faults.start:BroadcastsItsStateDict", sim),
        ModelScenario("moving average"),
    )
    told = []
    for law in (MEAN, law_of(test_models.test_buffers_begin_alike_and_follow_the_policy_claimed)):
        with pytest.raises(SilentlyWrong) as broken:
            law.check(fault, scenario)
        told.append(filed_failure(law, fault, diagnose(fault, Failure(scenario, broken.value))))
    assert told[0]["cause"] == told[1]["cause"]
    assert [each["plain"] for each in told] == [False, True]


def test_a_bucket_sent_after_the_first_of_two_hooks_is_found(sim: World) -> None:
    """On real processes it is a race: the reduction may read the gradient when the second use is in it."""
    scenario = ModelScenario("transformer", checkpoint="re-entrant", twice=True, bucket_cap=16)
    with pytest.raises(SilentlyWrong, match=r"block\..*\.grad"):
        MEAN.check(trial_of("lockstep.impls.faults.models:FirstHookIsTheLast", sim), scenario)


def test_a_first_hook_in_a_bucket_of_all_is_found_where_nothing_comes_after_the_block(sim: World) -> None:
    """An embedding that is trained is the last to be final, and so all of its bucket is final when it goes out."""
    fault = trial_of("lockstep.impls.faults.models:FirstHookIsTheLast", sim)
    trained = ModelScenario("transformer", checkpoint="re-entrant", twice=True)
    MEAN.check(fault, trained)
    with pytest.raises(SilentlyWrong, match=r"block\..*\.grad"):
        MEAN.check(fault, replace(trained, frozen="embedding"))


@pytest.mark.parametrize("checkpoint", ["", "not re-entrant", "re-entrant"])
def test_a_frozen_embedding_leaves_the_block_its_gradients(checkpoint: str, sim: World, gloo: World) -> None:
    scenario = ModelScenario("transformer", checkpoint=checkpoint, twice=True, frozen="embedding")
    for world in (sim, gloo):
        MEAN.check(trial_of(NAIVE, world), scenario)


def test_a_module_used_twice_and_divided_twice_is_wrong_on_real_processes_too(sim: World, gloo: World) -> None:
    for world in (sim, gloo):
        with pytest.raises(SilentlyWrong, match=r"block\..*\.grad"):
            MEAN.check(
                trial_of("lockstep.impls.faults.models:DividesOnceAUse", world),
                ModelScenario("transformer", twice=True),
            )


def test_a_failure_is_told_with_names_and_a_command(
    sim: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_test = trial_of("lockstep.impls.faults.models:WaitsForUnused", sim)
    with pytest.raises(SilentlyWrong) as broken:
        MEAN.check(under_test, ModelScenario("two heads", heads=(1, 1)))
    failure = Failure(broken.value.scenario, broken.value)
    lines = report(MEAN, under_test, diagnose(under_test, failure, to_the_core=False)).splitlines()
    assert lines[0] == "WaitsForUnused breaks P1 on the sim world: silently wrong"
    assert "On rank 0, in step 0, early.weight.grad[0,0] is" in " ".join(lines)
    assert "The smallest run that shows it: two heads, float32, on 2 ranks, stepped by SGD." in lines
    assert lines[-2] == (
        f"See it:    {from_here(sys.executable)} -m lockstep.properties.models.again --world sim "
        "--impl lockstep.impls.faults.models:WaitsForUnused \"ModelScenario(model='two heads', heads=(1, 1))\""
    )
    monkeypatch.chdir(tmp_path)
    command = (
        report(MEAN, under_test, diagnose(under_test, failure, to_the_core=False))
        .splitlines()[-2]
        .removeprefix("See it:")
    )
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=200, check=False)
    told = "P1  a real model gets the mean gradient of the whole batch: silently wrong: "
    assert told in ran.stdout, ran.stderr[-2000:]


@pytest.mark.parametrize(
    ("name", "device", "sharing", "asked"),
    [
        ("nccl", "cuda", 1, "--world nccl --impl"),
        ("nccl", "cuda", 4, "--world nccl --ranks-per-gpu 4 --impl"),
        ("gloo", "cuda", 1, "--world gloo --device cuda --impl"),
        ("torchrun", "cpu", 1, "--world gloo --impl"),
    ],
)
def test_the_command_runs_on_the_world_that_failed_or_on_processes_of_its_own(
    name: str, device: str, sharing: int, asked: str
) -> None:
    command, _ = again(trial_of(NAIVE, Elsewhere(name, device, sharing)), ModelScenario())
    assert asked in command


@dataclass
class Elsewhere:
    """A world that this machine cannot have, and that runs nothing."""

    name: str
    device: str
    ranks_per_gpu: int = 1
    limit: float = 60.0
    ranks: int | None = None

    def run(self, job: Job) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing was started."""


def test_a_long_model_is_told_without_breaking_its_words(sim: World) -> None:
    scenario = ModelScenario("transformer", 3, checkpoint="not re-entrant", twice=True, bucket_cap=16)
    naive = trial_of(NAIVE, sim)
    broken = SilentlyWrong("Wrong.", scenario, run(naive, scenario).outcome)
    lines = report(MEAN, naive, diagnose(naive, Failure(scenario, broken), to_the_core=False)).splitlines()
    assert not any(line.endswith("-") for line in lines)
    assert "activations recomputed (not re-entrant)" in " ".join(" ".join(lines).split())


def test_the_law_shows_that_its_intervals_see_faults(sim: World) -> None:
    assert unwitnessed(MEAN, trial_of(NAIVE, sim)) == []


@pytest.mark.parametrize("name", [NAIVE, "lockstep.impls.twins.models:GathersAndAdds"])
def test_uses_of_a_module_may_be_added_in_any_order(sim: World, name: str) -> None:
    """Recomputed re-entrantly, each use is added to what has accumulated; else those of a micro-batch are added first.

    The orders give other bits, and both are right.
    """
    for checkpoint in ("", "re-entrant"):
        MEAN.check(trial_of(name, sim), ModelScenario("transformer", 3, (2, 1), checkpoint, twice=True))


@pytest.mark.parametrize("silent", [True, False])
def test_whatever_way_a_mean_is_taken_in_parts_each_use_is_in_one_of_them(silent: bool) -> None:
    def of(batch: int, rank: int) -> list[list[str]]:
        return [[f"{batch}{rank}a", f"{batch}{rank}b"], [f"{batch}{rank}"]]

    batches = [[of(batch, rank) for rank in range(2)] for batch in range(3)]
    ways = [*partings(batches, Claims(stage=3, silent_no_sync=silent))]
    assert len(ways) == (3 if silent else 2)
    for way in ways:
        for rank, parameter in product(range(2), range(2)):
            found = [use for part in way for use in part[rank][parameter] if use is not None]
            assert sorted(found) == sorted(use for batch in batches for use in batch[rank][parameter])
    assert len({tuple(map(repr, way)) for way in ways}) == len(ways)
