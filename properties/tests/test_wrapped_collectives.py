"""The wrappers of collectives that ship, and torch's, beyond what the laws look at."""

import itertools

import pytest

from lockstep.properties import test_wrappers
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.law import law_of
from lockstep.properties.reports.failure import report
from lockstep.properties.searching.search import Failure, search
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import SilentlyWrong
from lockstep.properties.wrapper_call import Call, adjoints, inputs, results, weights
from lockstep.worlds.contract import Job, World

MEANING = law_of(test_wrappers.test_wrappers_return_what_their_collective_means)
ADJOINT = law_of(test_wrappers.test_backward_through_a_wrapper_is_the_transpose_of_its_collective)
OURS, TORCHS = (
    "lockstep.impls.collective_wrappers:Collectives",
    "lockstep.impls.frameworks.torch_collectives:TorchCollectives",
)
OPERATIONS = ("all_reduce", "broadcast", "reduce_scatter", "all_gather")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_ours_hold_on_real_processes_in_a_group_without_rank_zero(gloo: World, operation: str) -> None:
    call = Call(operation, 3, (1, 2), 3, 2, "transposed", root=2 if operation == "broadcast" else 0)
    for law in (MEANING, ADJOINT):
        law.check(trial_of(OURS, gloo), call)


@pytest.mark.parametrize(("operation", "steps"), [("all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1)])
def test_the_rings_take_as_many_messages_as_the_literature_says(sim: World, operation: str, steps: int) -> None:
    """N - 1 sends for each of its phases, on every rank, in each of two calls."""
    for size in (1, 2, 3, 5):
        call = Call(operation, size, tuple(range(size)), 5, 1)
        payload = call.to_json(OURS, adjoint=False)
        for seen in sim.run(Job("lockstep.properties.ranks.run_call:run_call", payload, size)):
            sends = [each for each in seen.collectives if each.operation == "send"]
            assert len(sends) == 2 * steps * (size - 1)
            assert {each.operation for each in seen.collectives} <= {"send", "recv"}


def test_the_adjoint_is_the_transpose_by_its_definition() -> None:
    """<A x, y> = <x, A^T y>, summed over the members, for every call that is not too large."""
    for operation, reduction, size in itertools.product(OPERATIONS, ("sum", "average"), (1, 2, 3)):
        call = Call(operation, size + 1, tuple(range(1, size + 1)), 2, 2, reduction=reduction, root=size)
        x, y = inputs(call, 1, call.shape), weights(call)
        forward, backward = results(call), adjoints(call)
        assert sum((forward[rank] * y[rank]).sum() for rank in call.group) == sum(
            (x[rank] * backward[rank]).sum() for rank in call.group
        )


def test_torchs_own_mean_what_they_should(sim: World) -> None:
    """Backward is another matter: see ADJOINT on a group without rank 0, and pytorch/pytorch#130515."""
    assert search(MEANING, trial_of(TORCHS, sim), 60, seed_value=0).failures == []
    for operation in OPERATIONS:
        ADJOINT.check(trial_of(TORCHS, sim), Call(operation, 3, (0, 1, 2), 2, 2))


def test_what_is_wrapped_is_named_in_the_report(sim: World) -> None:
    faulty = trial_of("lockstep.impls.faults.wrappers:AdjointComparesRanksOfTwoKinds", sim)
    call = Call("broadcast", 2, (1,), root=1)
    with pytest.raises(SilentlyWrong) as broken:
        ADJOINT.check(faulty, call)
    told = report(ADJOINT, faulty, diagnose(faulty, Failure(call, broken.value), to_the_core=False))
    assert "2 ranks: broadcast from rank 1 over a group of rank 1, on a contiguous 1x1 tensor." in told
    assert "\nCall:      Call('broadcast', 2, (1,), root=1)" in told
    assert "On rank 1 the gradient is [[0.0]] where it must be [[1001.0]]" in " ".join(told.split())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("all_reduce", 1, (0,)), "1 rank: all_reduce (sum) over all ranks, on a contiguous 1x1 tensor"),
        (
            Call("broadcast", 2, (1,), root=1, dimensions=0, dtype="int64"),
            "2 ranks: broadcast from rank 1 over a group of rank 1, on a contiguous 0-d int64 tensor",
        ),
        (
            Call("all_gather", 3, (1, 2), 2, 3, "columns", dtype="float64"),
            "3 ranks: all_gather over a group of ranks 1, 2, "
            "on a 2x3 float64 tensor that is every other column of a larger one",
        ),
        (
            Call("reduce_scatter", 2, (0, 1), 1, 1, "transposed", "average", dimensions=3),
            "2 ranks: reduce_scatter (average) over all ranks, on a transposed 2x1x2 tensor",
        ),
    ],
)
def test_a_call_is_told_in_words_and_its_repr_evaluates_back(call: Call, words: str) -> None:
    assert call.words() == words
    assert eval(repr(call)) == call
