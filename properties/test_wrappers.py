"""P14: a wrapper of a collective gives the collective's result, and backward works through it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.properties.errors import judge_errors
from lockstep.properties.judging.judge import holds
from lockstep.properties.law import law
from lockstep.properties.strategies.calls import calls, calls_of_any
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.properties.wrapper_call import AROUND, SECOND, Call, adjoints, inputs, results, weights
from lockstep.worlds.contract import Job, Outcome

TOLD = {"again": "second gradient", "second": "second result", "given": "gradient that was given"}


@law("P14", calls_of_any, needs=lambda claims: bool(claims.collectives))
def test_wrappers_return_what_their_collective_means(trial: Trial, call: Call) -> None:
    """For any shape, strides and group, every member gets the reduction, broadcast or gathering of all members' inputs.
    An input stays unchanged, unless it is also the output. A result stays unchanged during the next call.

    Why: callers do not know a tensor's layout in memory. A root or a share is counted by one numbering of ranks.

    Broken by reducing a contiguous copy and returning the original, by reading memory in place of values, and by taking
    a rank in the group for a global rank: NVIDIA/Megatron-LM#5337, pytorch/pytorch#192920, pytorch/pytorch#128066.
    """
    outcome = run(trial, call, adjoint=False)
    compare(
        call,
        outcome,
        "result",
        results(call),
        "The result, once there was another call, is not what the collective means.",
    )
    compare(
        call, outcome, "second", results(call, SECOND), "The result of a second call is not what the collective means."
    )
    for rank, given in enumerate(inputs(call, 1, call.shape)):
        seen: Any = outcome[rank].result
        left = seen["left"] if rank in call.group else None
        if left is not None and not holds(left, given):
            words = f"What rank {rank} gave was {numbers(given)}, is {numbers(left)} after the call"
            raise SilentlyWrong(f"{words}, and is not what was returned.", call, outcome)
    for rank in call.group if call.layout == "columns" else ():
        seen = outcome[rank].result
        if not holds(seen["around"], np.full_like(seen["around"], AROUND)):
            raise SilentlyWrong(f"On rank {rank} memory between the tensor's elements was written.", call, outcome)


@law("P14", calls, needs=lambda claims: claims.differentiable)
def test_backward_through_a_wrapper_is_the_transpose_of_its_collective(trial: Trial, call: Call) -> None:
    """For y = A x over all members, with the ranks' losses added up, the gradient of x is the transpose of A times that
    of y. The gradient of y stays unchanged.

    Why: this is the chain rule, whichever rank holds which piece: sums become sums and averages become averages, a
    gathering becomes a scattered sum, a broadcast becomes a sum at its root. Autograd passes y's gradient to others
    too.

    Broken by a backward that forgets the reduction, and by comparing roots with ranks of another numbering:
    horovod/horovod#2116, horovod/horovod#2654, pytorch/pytorch#130515.
    """
    outcome = run(trial, call, adjoint=True)
    compare(call, outcome, "gradient", adjoints(call), "Backward is not the transpose of forward.")
    compare(call, outcome, "again", adjoints(call), "Backward through the same result once more is another.")
    compare(call, outcome, "given", weights(call), "Backward changes the gradient of the result, which it was given.")


def run(trial: Trial, call: Call, adjoint: bool) -> Outcome:
    """Run the call on the world. Raises LawBroken or Refused if not every rank finished."""
    payload = call.to_json(trial.implementation.name, adjoint)
    outcome = trial.outcome(Job("lockstep.properties.ranks.run_call:run_call", payload, call.world_size))
    judge_errors(call, outcome)
    trial.ended(outcome)
    return outcome


def compare(call: Call, outcome: Outcome, what: str, expected: Sequence[Any], headline: str) -> None:
    """Raise SilentlyWrong unless every member has the expected result bit for bit."""
    for rank in call.group:
        seen: Any = outcome[rank].result
        if not holds(seen[what], expected[rank]):
            told = [None if each is None else numbers(each) for each in (seen[what], expected[rank])]
            words = f"{headline} On rank {rank} the {TOLD.get(what, what)} is {told[0]} where it must be {told[1]}."
            if told[0] == told[1]:
                words += f" It is {seen[what].dtype} where {expected[rank].dtype} is due."
            raise SilentlyWrong(words, call, outcome)


def numbers(values: Any) -> Any:
    """The values as Python numbers, even for dtypes that NumPy does not have."""
    return (values.astype(np.float32) if values.itemsize == 2 else values).tolist()
