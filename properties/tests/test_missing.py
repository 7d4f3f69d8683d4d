"""A report says which collectives are missing, and only where no number on the wire may be the gradient in question."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.fingerprint import coefficients
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import test_mean as mean
from lockstep.properties.diagnosing.diagnosis import Diagnosis, diagnose
from lockstep.properties.diagnosing.shares import Share
from lockstep.properties.difference import Difference
from lockstep.properties.law import law_of
from lockstep.properties.reports.failure import story
from lockstep.properties.reports.missing import NONE_AT_ALL, missing
from lockstep.properties.searching.search import Failure
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import Collective, World

PROGRAM = Scenario(2, (Parameter((1,)),) * 2, (Backward(((0, 1), (0, 1))), Finish()))
SUM = Collective("all_reduce", "sum", "float32", 1, -1, "default")
A, B = 0, 1


def gradient(rank: int, parameter: int) -> float:
    """The gradient of one rank."""
    return float(coefficients(PROGRAM, rank)[0][parameter][0])


def told(*sent: tuple[float, ...], call: Collective = SUM, wrong: int = A, others: int = 0) -> list[str]:
    """What is said of a run on two ranks with one collective, where rank 0 has its own gradient of that parameter.
    ``others``: how much of rank 1's is in it, too.
    """
    difference = Difference("gradient", 1, 0, wrong, (0,), np.ones(1), np.full(1, 2.0))
    broken = SilentlyWrong("Wrong.", PROGRAM, (), difference)
    shares = tuple(Share(0, rank, wrong, 0, Fraction(part), Fraction(1, 2)) for rank, part in ((0, 1), (1, others)))
    calls = [replace(call, count=len(each), sent=np.array(each, np.float32)) for each in sent]
    trained = tuple((each,) for each in calls) or ((), ())
    return missing(Diagnosis(Failure(PROGRAM, broken), (), trained, shares=shares))


def test_a_parameter_whose_gradient_no_collective_carries_is_named() -> None:
    only_b = tuple((gradient(rank, B),) for rank in range(2))
    assert told(*only_b) == ["No collective carries a gradient of a."]
    assert told(*((each[0] / 2, 0.0) for each in only_b)) == ["No collective carries a gradient of a."]


def test_nothing_is_said_where_a_number_may_be_its_gradient() -> None:
    only_b = tuple((gradient(rank, B),) for rank in range(2))
    assert told(*only_b, wrong=B) == []
    assert told((gradient(0, B),), (gradient(1, A),)) == [], "rank 1 sends one"
    assert told(*((*each, 0.3) for each in only_b)) == [], "a number without a label may be anything"
    assert told(*((*each, 1.0) for each in only_b)) == [], "rank 0's gradient of a is 1, as a flag is"
    assert told(*only_b, call=replace(SUM, dtype="int32")) == [], "integers may be compressed gradients"
    assert told(*only_b, others=1) == [], "a gradient of rank 1's has come in some way"


def test_only_what_the_root_gives_travels_from_it() -> None:
    call = replace(SUM, operation="broadcast", reduction="", root=1)
    assert told((gradient(0, A),), (gradient(1, B),), call=call) == ["No collective carries a gradient of a."]
    assert told((gradient(0, B),), (gradient(1, A),), call=call) == []


def test_a_run_without_a_collective_says_so_and_one_that_is_not_known_says_nothing() -> None:
    assert told() == [NONE_AT_ALL]
    broken = SilentlyWrong("Wrong.", PROGRAM, (), Difference("gradient", 1, 0, A, (0,), np.ones(1), np.full(1, 2.0)))
    assert missing(Diagnosis(Failure(PROGRAM, broken), ())) == []


@pytest.mark.parametrize(
    ("name", "cap", "words"),
    [
        ("lockstep.properties.tests.user_code:NeverSynchronizes", None, NONE_AT_ALL),
        ("lockstep.impls.faults.invariance:ForgetsTheExactFit", 4, "No collective carries a gradient of a."),
        ("lockstep.properties.tests.user_code:SumsTheBuckets", 4, ""),
    ],
)
def test_a_report_says_it_below_the_picture(sim: World, name: str, cap: int | None, words: str) -> None:
    """Of one of two parameters, of all, and of none where gradients are only summed."""
    trial, law = trial_of(name, sim), law_of(mean.test_gradients_equal_the_mean_over_ranks)
    program = Scenario(2, (Parameter((1,)), Parameter((2,))), (Backward(((0, 1), (0, 1))), Finish()), bucket_cap=cap)
    with pytest.raises(SilentlyWrong) as broken:
        law.check(trial, program)
    lines = story(law, trial, diagnose(trial, Failure(program, broken.value), to_the_core=False))
    said = [line.strip() for line in lines if line.strip().startswith("No collective ")]
    assert said == ([words] if words else [])
    assert lines[lines.index("What went over the wire:") :].count(f"    {words}") == bool(words)
