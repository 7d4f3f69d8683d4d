"""What runs on the simulated world and on gloo, unmodified: the rows of docs/what-runs.md, each of them here.

The same program must give the same bits on both: data are such that the order of a sum cannot matter.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.home import HOME
from lockstep.worlds.contract import Outcome, World
from lockstep.worlds.tests.outcomes import kinds, messages, plain, program, results

HOOKS_THAT_RUN = ("allreduce", "fp16", "fp16 around allreduce", "PowerSGD", "noop")
FSDP1 = [(strategy, kept) for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD") for kept in (True, False)]
FSDP1_OPTIONS = {
    **{"HYBRID_SHARD": 4, "_HYBRID_SHARD_ZERO2": 4, "BACKWARD_POST": 2, "without backward_prefetch": 2},
    **{"forward_prefetch": 2, "without limit_all_gathers": 2, "MixedPrecision": 2},
}  # and on how many ranks

# Row: module, function, payload, ranks.
RUNS: dict[str, tuple[str, str, Any, int]] = {
    "DDP": ("wrappers", "ddp", {}, 2),
    "DDP, static_graph": ("wrappers", "ddp", {"static_graph": True}, 2),
    "DDP, gradient_as_bucket_view": ("wrappers", "ddp", {"gradient_as_bucket_view": True}, 2),
    "DDP, bucket_cap_mb": ("wrappers", "ddp", {"bucket_cap_mb": 0.0001}, 2),
    "DDP, find_unused_parameters": ("wrappers", "ddp_unused_parameters", True, 2),
    "DDP, without broadcast_buffers": ("wrappers", "ddp_unused_parameters", False, 2),
    "DDP, without init_sync": ("wrappers", "ddp", {"init_sync": False, "broadcast_buffers": False}, 2),
    "DDP, skip_all_reduce_unused_params": (
        *("wrappers", "ddp"),
        *({"find_unused_parameters": True, "skip_all_reduce_unused_params": True}, 2),
    ),
    "DDP, torch.compile around it": ("wrappers", "ddp_compiled", None, 2),
    "DDP, device_mesh": ("wrappers", "ddp_mesh", None, 4),
    "DDP, no_sync": ("wrappers", "ddp_no_sync", None, 2),
    "DDP, sparse gradients": ("sparse", "embedding", False, 3),
    "DDP, join": ("wrappers", "ddp_join", None, 2),
    "DDP and ZeroRedundancyOptimizer, Join": ("wrappers", "ddp_and_zero_join", None, 2),
    **{f"DDP, {hook} hook": ("wrappers", "ddp_hook", hook, 2) for hook in HOOKS_THAT_RUN},
    "DDP, ALLREDUCE hook in C++": ("wrappers", "ddp_builtin_hook", "ALLREDUCE", 2),
    "DDP, post-local SGD": ("wrappers", "ddp_post_local_sgd", None, 2),
    "ZeroRedundancyOptimizer": ("wrappers", "zero", {}, 2),
    "ZeroRedundancyOptimizer, parameters_as_bucket_view": (
        *("wrappers", "zero"),
        *({"parameters_as_bucket_view": True}, 2),
    ),
    **{
        f"FSDP1, {strategy}, {'with' if kept else 'without'} use_orig_params": (
            "wrappers",
            "fsdp1",
            [strategy, kept],
            2,
        )
        for strategy, kept in FSDP1
    },
    **{f"FSDP1, {name}": ("wrappers", "fsdp1_option", name, ranks) for name, ranks in FSDP1_OPTIONS.items()},
    "FSDP2": ("wrappers", "fsdp2", [[2], {}], 2),
    "FSDP2, without reshard_after_forward": ("wrappers", "fsdp2", [[2], {"reshard_after_forward": False}], 2),
    "FSDP2, MixedPrecisionPolicy": ("wrappers", "fsdp2", [[2], {"low precision": True}], 2),
    "FSDP2, replicas of shards": ("wrappers", "fsdp2", [[2, 2], {}], 4),
    **{f"{name}, whole numbers": ("wrappers", "four_wrappers", name, 4) for name in ("DDP", "ZeRO", "FSDP1", "FSDP2")},
    "DTensor, redistribute": ("sharded", "redistributions", None, 3),
    "DTensor, two dimensions": ("sharded", "two_dimensions", None, 4),
    "DTensor, tensor parallel": ("sharded", "tensor_parallel", None, 2),
    "functional collectives": ("sharded", "functional", None, 3),
    "collectives with gradients": ("sharded", "with_gradients", None, 3),
    "torch.distributed.checkpoint": ("sharded", "checkpoint", "at once", 2),
    **{
        f"torch.distributed.pipelining, {schedule}": ("sharded", "pipeline", schedule, 2)
        for schedule in ("GPipe", "1F1B", "Interleaved1F1B")
    },
    "object collectives": ("sharded", "objects", None, 3),
}

# Row: ..., and what every rank says on both worlds: torch itself refuses it on CPU, or has a bug.
REFUSED: dict[str, tuple[str, str, Any, int, str]] = {
    "DDP, bf16 hook": ("wrappers", "ddp_hook", "bf16", 2, "BF16 all reduce communication hook required"),
    "DDP, quantization hook": ("wrappers", "ddp_hook", "quantization per tensor", 2, "IndexError"),
    "DDP, batched PowerSGD hook": ("wrappers", "ddp_hook", "batched PowerSGD", 2, "AssertionError"),
    "DDP, mixed_precision": ("wrappers", "ddp_mixed_precision", None, 2, "cpu backend doesn't support events."),
    "DDP, SyncBatchNorm": ("wrappers", "ddp_sync_batch_norm", None, 2, "SyncBatchNorm layers only work with GPU"),
    "FSDP1, CPUOffload": (
        *("wrappers", "fsdp1_option"),
        *("CPUOffload", 2, "Cannot access accelerator device when none is available."),
    ),
    "ZeroRedundancyOptimizer, overlap_with_ddp": ("wrappers", "zero_overlapped", None, 2, "Gloo backend"),
}

# Of these, what a build of torch with CUDA runs, without a GPU too, or refuses in words that depend on the GPU.
BY_BUILD = {"DDP, bf16 hook", "DDP, mixed_precision", "FSDP1, CPUOffload"}

# Rows of RUNS that torch refuses where a GPU is seen, though their tensors are the CPU's, and what it says.
BESIDE_A_GPU = {"DDP, PowerSGD hook": "Expected a cuda device, but got: cpu"}

# Row: ..., and what every rank says on the simulated world; gloo runs it.
NOT_ON_SIM: dict[str, tuple[str, str, Any, int, str]] = {
    "DDP, FP16_COMPRESS hook in C++": ("wrappers", "ddp_builtin_hook", "FP16_COMPRESS", 2, "should return TensorList"),
    "torch.distributed.checkpoint, async_save": (
        "sharded",
        "checkpoint",
        "asynchronously",
        2,
        "a thread of the implementation",
    ),
}

# Row: ..., torch drops the handle of a collective without waiting for it.
RACES = {"DDP, delay_all_reduce_named_params": ("wrappers", "ddp_delayed", None, 2)}


def run(world: World, row: tuple[Any, ...], **options: bool) -> Outcome:
    module, function, payload, ranks = row[:4]
    with tempfile.TemporaryDirectory() as folder:  # gone whatever becomes of the ranks
        given = [payload, folder] if function == "checkpoint" else payload
        return program(world, function, ranks, given, module, **options)


@pytest.mark.parametrize("name", RUNS)
def test_what_runs_on_gloo_gives_the_same_bits_on_the_simulated_world(sim: World, gloo: World, name: str) -> None:
    if name in BESIDE_A_GPU and torch.cuda.is_available():
        for world in (sim, gloo):
            assert all(BESIDE_A_GPU[name] in message for message in messages(run(world, RUNS[name])))
        return
    here, there = (results(run(world, RUNS[name])) for world in (sim, gloo))
    assert any(here)
    assert plain(here) == plain(there)


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_on_cpu_is_refused_on_both_worlds(sim: World, gloo: World, name: str) -> None:
    here, there = (run(world, REFUSED[name]) for world in (sim, gloo))
    if name in BY_BUILD and torch.version.cuda is not None:
        assert any(kinds(here)) == any(kinds(there))
        # Beside a GPU, mixed precision of tensors of the CPU reads what nobody has written.
        if not any(kinds(there)) and not torch.cuda.is_available():
            assert plain(results(here)) == plain(results(there))
        return
    for outcome in (here, there):
        assert set(kinds(outcome)) <= {"raised", "abandoned", "died"}
        assert any(REFUSED[name][4] in message for message in messages(outcome))


@pytest.mark.parametrize("name", NOT_ON_SIM)
def test_what_cannot_run_on_the_simulated_world_says_so_on_every_rank(sim: World, gloo: World, name: str) -> None:
    for message in messages(run(sim, NOT_ON_SIM[name])):
        assert NOT_ON_SIM[name][4] in message
    assert any(results(run(gloo, NOT_ON_SIM[name])))


@pytest.mark.parametrize("name", RACES)
def test_a_handle_that_torch_drops_leaves_replicas_apart_unless_all_is_delivered_at_once(sim: World, name: str) -> None:
    first, second = (plain(dict(result)) for result in results(run(sim, RACES[name])))
    assert {key for key in first if first[key] != second[key]} == {"module.4.weight", "module.4.bias"}
    first, second = (plain(dict(result)) for result in results(run(sim, RACES[name], at_once=True)))
    assert first == second


def test_a_checkpoint_brings_back_what_was_saved_and_training_goes_on_from_there(sim: World) -> None:
    for rank, result in enumerate(results(run(sim, RUNS["torch.distributed.checkpoint"]))):
        assert result["files"] == ([".metadata", "__0_0.distcp", "__1_0.distcp"] if rank == 0 else [])
        assert plain(result["first"]) == plain(result["second"])
        assert plain(result["first"]) != plain(result["before"])


def test_the_replicas_of_every_wrapper_end_alike_and_moved(sim: World) -> None:
    for name in ("DDP", "FSDP2", "ZeRO, whole numbers", "FSDP1, whole numbers"):
        first, *others = (plain(dict(result)) for result in results(run(sim, RUNS[name])))
        assert all({**other, **{key: first[key] for key in first if "moment" in key}} == first for other in others)


def test_the_table_says_exactly_what_is_tested() -> None:
    """Rows of docs/what-runs.md: the name in the first column, then sim, then gloo."""
    lines = (Path(HOME) / "docs" / "what-runs.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    said = {row[0]: (row[1], row[2]) for row in cells if row[1] in ("runs", "no", "refused", "races")}
    tested = {
        **dict.fromkeys(RUNS, ("runs", "runs")),
        **dict.fromkeys(REFUSED, ("refused", "refused")),
        **dict.fromkeys(NOT_ON_SIM, ("no", "runs")),
        **dict.fromkeys(RACES, ("races", "races")),
    }
    assert said == tested
