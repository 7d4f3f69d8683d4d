"""Options that cannot be had are one clear line; what cannot run here is left out and said."""

import argparse
import sys

import pytest

from lockstep.properties import soundness
from lockstep.properties.implementations import Unusable
from lockstep.properties.models import again
from lockstep.properties.running.where import decide
from lockstep.worlds import devices, torchrun

NO_GPU = {"version": "2.13.0+cpu", "gpus": [], "nccl": ""}
TWO_GPUS = {"version": "2.13.0", "gpus": ["A", "A"], "nccl": "2.29"}


@pytest.mark.parametrize(
    ("worlds", "device", "in_process", "ranks_per_gpu", "workers", "words"),
    [
        (["gloo"], None, True, 1, False, "--in-process: only the simulated world"),
        (["sim"], "cuda", False, 1, False, "--device cuda: simulated ranks have CPU tensors only"),
        (["nccl"], "cpu", False, 1, False, "--device cpu: NCCL carries CUDA tensors only"),
        (["nccl"], None, False, 0, False, "--ranks-per-gpu 0: a GPU holds at least one rank"),
        (["gloo"], None, False, 2, False, "--ranks-per-gpu: use it with --world nccl"),
        (["torchrun"], None, False, 1, True, "--world torchrun: the ranks of a job serve one pytest process"),
        (["torchrun"], None, False, 1, False, "start pytest with torchrun"),
        (["nccl"], None, False, 1, False, "--world nccl: needs a CUDA GPU, and torch 2.13.0+cpu sees none here"),
    ],
)
def test_what_cannot_be_is_one_line(monkeypatch, worlds, device, in_process, ranks_per_gpu, workers, words) -> None:
    monkeypatch.setattr(devices, "look", lambda: NO_GPU)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(Unusable) as refused:
        decide(worlds, device, in_process, ranks_per_gpu, workers)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_only_the_simulated_world_adds_in_any_order() -> None:
    with pytest.raises(Unusable, match=r"--any-order: only the simulated world's order of reduction .* not gloo's"):
        decide(["gloo"], None, False, 1, False, any_order=True)
    header = decide([], None, True, 1, False, any_order=True).words()[0]
    assert header == "lockstep: on sim (cpu, in pytest's process, each example in a drawn order of reduction)"


def test_one_world_that_cannot_run_is_left_out_beside_one_that_can(monkeypatch) -> None:
    monkeypatch.setattr(devices, "look", lambda: NO_GPU)
    decided = decide(["sim", "nccl"], None, False, 1, False)
    assert list(decided.impossible) == ["nccl"]
    assert decided.words()[0] == "lockstep: on sim (cpu), nccl cannot run here"
    assert decided.words()[1].startswith("lockstep: skipped: --world nccl: needs a CUDA GPU")


def test_nccl_has_as_many_ranks_as_the_gpus_hold(monkeypatch) -> None:
    monkeypatch.setattr(devices, "look", lambda: TWO_GPUS)
    for per_gpu in (1, 3):
        world = decide(["nccl"], None, False, per_gpu, False).start("nccl")
        assert world.ranks == 2 * per_gpu
    assert decide(["nccl"], None, False, 2, False).words() == ["lockstep: on nccl (cuda, 4 ranks); 2 x A, NCCL 2.29"]


def test_a_run_on_one_gpu_says_how_nccl_can_have_more_ranks(monkeypatch) -> None:
    monkeypatch.setattr(devices, "look", lambda: {**TWO_GPUS, "gpus": ["A"]})
    (header,) = decide(["nccl"], None, False, 1, False).words()
    assert header.startswith("lockstep: on nccl (cuda, 1 rank; --ranks-per-gpu 4 lets 4 share the GPU); 1 x A")


@pytest.mark.parametrize(
    ("run", "asked"),
    [
        (lambda: soundness.main(argparse.ArgumentParser(), sys.argv[1:]), ["--ranks", "3"]),
        (again.main, ["--impl", "lockstep.impls.naive:NaiveDataParallel", "ModelScenario(world_size=3)"]),
    ],
)
def test_a_command_that_needs_more_ranks_than_there_are_says_how_to_have_them(monkeypatch, capsys, run, asked) -> None:
    monkeypatch.setattr(devices, "look", lambda: TWO_GPUS)
    monkeypatch.setattr(sys, "argv", ["command", "--world", "nccl", *asked])
    with pytest.raises(SystemExit, match="2"):
        run()
    said = capsys.readouterr().err.splitlines()[-1]
    assert "3 ranks are needed, and --world nccl has 2 here; --ranks-per-gpu lets more share a GPU" in said


def test_ranks_of_a_job_that_are_more_than_the_gpus_of_their_host_share_them_where_that_is_asked(monkeypatch) -> None:
    monkeypatch.setattr(devices, "look", lambda: TWO_GPUS)
    for name in torchrun.VARIABLES:
        monkeypatch.setenv(name, "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    asked = "NCCL takes a GPU for each rank, and this host has 2 for 5; --ranks-per-gpu 3 lets 3 share one"
    with pytest.raises(Unusable, match=f"^--world torchrun --device cuda: {asked}$"):
        decide(["torchrun"], "cuda", False, 2, False)
    assert not decide(["torchrun"], "cuda", False, 3, False).impossible
    assert not decide(["torchrun"], None, False, 1, False).impossible


def test_the_defaults_are_sim_and_gloo_on_the_cpu() -> None:
    decided = decide([], None, False, 1, False)
    assert decided.worlds == ("sim", "gloo")
    assert decided.words() == ["lockstep: on sim (cpu), gloo (cpu)"]
