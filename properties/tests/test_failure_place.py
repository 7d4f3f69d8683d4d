"""Where a rank failed, as it was noted: in construction it is told with what the implementation was called."""

import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.errors import alike, judge_errors
from lockstep.properties.failure_place import construction_of, note, place_of
from lockstep.properties.verdict import Refused
from lockstep.worlds.contract import RankError, RankReport

SCENARIO = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))


def test_how_it_was_constructed_is_read_as_it_was_noted() -> None:
    alone, called = note(-1, SCENARIO.program), note(-1, SCENARIO.program, "Buckets(module, bucket_cap_mb=0.5)")
    assert place_of([alone]) == place_of([called]) == -1
    assert construction_of(["the user's own", called]) == called
    assert construction_of([alone, note(0, SCENARIO.program), f"{called} of theirs"]) == ""


def test_who_refuses_to_be_constructed_is_told_with_what_and_all_numbers_are_one_kind() -> None:
    refused = []
    for cap in ("25", "2.5", "2.19345e-05"):
        called = f"Buckets(module, bucket_cap_mb={cap})"
        error = RankError("raised", "TypeError: it must be an integer.", "", (note(-1, (), called),), True)
        with pytest.raises(Refused) as told:
            judge_errors(SCENARIO, (RankReport(None, error),) * 2)
        assert str(told.value) == f"TypeError: it must be an integer, while it was constructed as {called}"
        refused.append(alike(str(told.value)))
    assert len(set(refused)) == 1
