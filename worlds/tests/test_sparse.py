"""Sparse tensors add up on sim as on gloo, bit for bit; what else might be done with them is refused, and named."""

import functools

import numpy as np
import pytest

from lockstep.worlds.contract import Asynchrony, Job, World
from lockstep.worlds.tests.outcomes import kinds, messages, plain, results, run_of

run = functools.partial(run_of, "sparse")


@pytest.mark.parametrize("function", ["adding_up", "in_which_order"])
def test_sparse_tensors_add_up_as_on_gloo(sim: World, gloo: World, function: str) -> None:
    """Whatever rows each rank has, with its own added up first; bits are those of the order of ranks."""
    here, there = (results(run(each, function, 4)) for each in (sim, gloo))
    assert plain(here) == plain(there)


def test_the_sum_is_that_of_the_tables(sim: World) -> None:
    (first, *_) = results(run(sim, "adding_up", 3))
    assert first["first"].tolist() == [[4.5, 1.5], [4.0, 6.0], [4.0, 6.0], [4.0, 6.0], [0.0, 0.0]]
    assert np.array_equal(first["then"], 3 * first["first"])
    assert first["few"].tolist() == [[1.5, 0.5], [0.0, 0.0], [4.0, 6.0], [0.0, 0.0], [0.0, 0.0]]
    assert first["rows"].tolist() == [[0, 1, 2, 3]]
    assert first["coalesced"]


@pytest.mark.parametrize("payload", ["false", "true"])
def test_ddp_leaves_the_gradients_of_embeddings_sparse(sim: World, payload: str) -> None:
    """What they are is one of the rows of `docs/what-runs.md`."""
    for result in results(run(sim, "embedding", 3, payload)):
        assert result["layouts"] == ["torch.sparse_coo", "torch.strided", "torch.strided"]


def test_they_are_read_and_written_when_the_job_says(sim: World) -> None:
    """Rank 0 launches first, and changes its own before rank 1 is there."""
    for reads, times in (("launch", 1), ("completion", 2)):
        job = Job("lockstep.worlds.tests.sparse:looking_before_it_waits", "", 2, asynchrony=Asynchrony(reads, "wait"))
        for result in results(sim.run(job)):
            assert result["after"].tolist()[:2] == [[1.5 + times * 0.5, 0.5 + times * 0.5], [4.0 * times, 6.0 * times]]
            assert result["before"].tolist() != result["after"].tolist()


@pytest.mark.parametrize(("payload", "dropped"), [("kept", 1), ("gone", 0)])
def test_a_handle_that_is_dropped_is_named_where_the_tensor_is_kept(sim: World, payload: str, dropped: int) -> None:
    outcome = sim.run(Job("lockstep.worlds.tests.sparse:dropping_the_handle", payload, 2, asynchrony=Asynchrony()))
    assert kinds(outcome) == [None, None]
    assert [[hazard.kind for hazard in report.hazards] for report in outcome] == [["dropped"] * dropped] * 2


def test_what_is_recorded_has_the_zeros_between(sim: World, gloo: World) -> None:
    for world in (sim, gloo):
        sent = run(world, "adding_up", 2, contents=True)[1].collectives[0].sent
        assert sent is not None
        assert sent.tolist() == [1.5, 0.5, 0.0, 0.0, 4.0, 6.0, 0.0, 0.0, 0.0, 0.0]


def test_what_is_no_sum_is_refused(sim: World, gloo: World) -> None:
    for world, words in ((sim, "sparse tensors can be added up, and nothing else"), (gloo, "only works with")):
        outcome = run(world, "what_is_no_sum", 2, "maximum")
        assert kinds(outcome) == ["raised"] * 2
        assert words in messages(outcome)[0]
    for payload in ("coalesced", "half"):
        for world in (sim, gloo):
            outcome = run(world, "what_is_no_sum", 2, payload)
            assert kinds(outcome) == ["raised"] * 2
            assert all(message.startswith("NotImplementedError") for message in messages(outcome))
    outcome = run(sim, "what_is_no_sum", 2, "broadcast")
    assert kinds(outcome) == ["not runnable"] * 2
    assert "no broadcast of torch.sparse_coo tensors" in messages(outcome)[0]


def test_nccl_has_no_such_sum_which_says_nothing_against_the_rank(gloo: World) -> None:
    """And would say so with the words of a crash."""
    for result in results(run(gloo, "as_if_on_nccl", 2, "")):
        assert "NCCL has no all-reduce of sparse tensors" in result["said"]
    outcome = run(gloo, "as_if_on_nccl", 2, "minds")
    assert kinds(outcome) == ["not runnable"] * 2
    assert all("NCCL has no all-reduce of sparse tensors" in message for message in messages(outcome))
    assert kinds(run(gloo, "as_if_on_nccl", 2, "errs")) == ["raised"] * 2  # by itself
    assert results(run(gloo, "as_if_on_nccl", 2, ""))


@pytest.mark.parametrize("payload", ["one alone", "otherwise sparse"])
def test_ranks_that_give_what_cannot_be_added_are_a_mismatch(sim: World, payload: str) -> None:
    """With one that is sparse on one rank alone gloo may hang, with sparse elements instead of rows it dies."""
    outcome = run(sim, "what_is_no_sum", 2, payload)
    assert "mismatch" in kinds(outcome)
    assert "all_reduce(sparse sum of 5x2, 1 of 2 dimensions, 10 x float32)" in " ".join(map(str, messages(outcome)))
