"""The picture of what went over the wire fits on a screen, and shows where different parameters meet."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.fingerprint import coefficients
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.reports.paragraphs import LEAST, NARROW
from lockstep.properties.reports.picture import LINE, WIDEST, first_clash, picture
from lockstep.properties.trial import job
from lockstep.worlds.contract import Asynchrony, Collective, RankReport, World, group_label


def two_ranks(
    *sent: list[float], operation: str = "all_reduce", got: tuple[list[float] | None, ...] = (None, None)
) -> tuple[RankReport, ...]:
    """What two ranks that agree on one reduction have sent, and what they got; None: they have not waited."""
    call = Collective(operation, "sum", "float32", len(sent[0]), -1, "default")
    contents = (
        [None if row is None else np.array(row, np.float32) for row in rows] for rows in zip(sent, got, strict=True)
    )
    return tuple(RankReport(None, None, (replace(call, sent=put, got=taken),)) for put, taken in contents)


def calls_of(*calls: Collective) -> tuple[RankReport, ...]:
    """Of ranks that have made one call each, of which nothing else is known."""
    return tuple(RankReport(None, None, (call,)) for call in calls)


def picture_of(sim: World, implementation: str, program: Scenario, choices: Mapping[str, Any]) -> list[str]:
    """The picture of a run."""
    return picture(program, sim.run(job(implementation, program, True, choices)))


def scenario(count: int) -> Scenario:
    """Two ranks, two parameters of so many elements, one micro-batch."""
    return Scenario(2, (Parameter((count,)),) * 2, (Backward(((0, 1), (1, 0))), Finish()))


def test_of_many_long_numbers_those_are_shown_that_fit_on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = picture(scenario(1), two_ranks(*([123456.0 + rank + i for i in range(40)] for rank in range(2))))
    assert [line.count("|") for line in lines[1:]] == [12] * 3  # ten cells and the dots
    assert all(line.endswith("| ... |") for line in lines[1:])
    lines = picture(scenario(1), two_ranks(*([1e-30 / 3 + rank + i / 7 for i in range(40)] for rank in range(2))))
    shown = [line.partition("| ")[2].removesuffix(" | ... |") for line in lines[1:]]
    assert max(map(len, shown)) <= LINE
    assert 3 < lines[1].count("|") < WIDEST + 2
    monkeypatch.setenv(NARROW, str(LEAST))
    narrow = picture(scenario(1), two_ranks(*([1e-30 / 3 + rank + i / 7 for i in range(40)] for rank in range(2))))
    assert max(map(len, narrow)) <= LEAST - len("    ")  # the indent of a report


def test_words_beside_a_line_go_below_it_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    program = scenario(2)
    first, second = (coefficients(program, rank)[0] for rank in range(2))
    sent = [np.array([*first[0], *first[1]], np.float32), np.array([*second[1]], np.float32)]
    call = Collective("all_reduce", "sum", "float32", 0, -1, "default")
    outcome = calls_of(*(replace(call, count=len(each), sent=each) for each in sent))
    wide = picture(program, outcome)
    assert any(line.endswith("|  all_reduce(sum, 4 x float32)") for line in wide)
    monkeypatch.setenv(NARROW, str(LEAST))
    narrow = picture(program, outcome)
    assert max(map(len, narrow)) <= LEAST - len("    ")
    assert [line.strip() for line in narrow if "|" not in line and "^" not in line][1:] == [
        "all_reduce(sum, 4 x float32)",
        "all_reduce(sum, 2 x float32)",
        "different parameters meet here",
    ]


def test_of_a_collective_of_nothing_there_is_nothing_to_show() -> None:
    assert picture(scenario(1), two_ranks([], [])) == ["1. all_reduce(sum, 0 x float32)"]


def test_different_parameters_that_meet_are_marked() -> None:
    program = scenario(1)
    first, second = (coefficients(program, rank)[0] for rank in range(2))
    lines = picture(program, two_ranks([float(first[0][0])], [float(second[1][0])]))
    assert "a[0] = " in lines[1]
    assert "b[0] = " in lines[2]
    assert lines[3].endswith("different parameters meet here")


def test_the_first_place_where_different_parameters_meet_is_told_as_data() -> None:
    program = scenario(1)
    (a, b), (c, d) = ([float(each[0]) for each in coefficients(program, rank)[0]] for rank in range(2))
    right, wrong = two_ranks([a, b], [c, d]), two_ranks([a, b], [d, c])
    both = tuple(
        replace(one, collectives=one.collectives + two.collectives) for one, two in zip(right, wrong, strict=True)
    )
    title = "2. all_reduce(sum, 2 x float32)"
    assert first_clash(program, both) == (title, [f"rank 0 sends a[0] = {a:g}", f"rank 1 sends b[0] = {d:g}"])
    assert picture(program, both)[4] == title
    assert first_clash(program, right) == ("", [])


def test_gradients_that_follow_the_parameters_are_not_taken_for_those_of_others() -> None:
    """What rank 1 sends is the coefficient of another parameter by chance."""
    program = replace(scenario(1), probe="quadratic")
    first, second = (coefficients(program, rank)[0] for rank in range(2))
    lines = picture(program, two_ranks([float(first[0][0])], [float(second[1][0])]))
    assert [line.count("=") for line in lines] == [0] * len(lines)
    assert not any("different parameters" in line for line in lines)


def test_a_flag_that_is_called_like_a_gradient_is_not_taken_for_one() -> None:
    """Rank 0's a[0] is 1, and so is the flag that it alone sends."""
    program = scenario(1)
    first, second = ([float(each[0]) for each in coefficients(program, rank)[0]] for rank in range(2))
    assert first[0] == 1
    lines = picture(program, two_ranks([*first[::-1], 1, 1], [*second[::-1], 1, 0]))
    assert [cell.strip() for cell in lines[1].split("|")[1:-1]] == [f"b[0] = {first[1]:g}", "a[0] = 1", "1", "1"]
    assert not any("different parameters" in line for line in lines)


def test_what_each_rank_gets_of_a_scattered_sum_stands_below_its_columns() -> None:
    seen = ([0.75, 4.0], [14.0, 0.0])
    lines = picture(scenario(1), two_ranks([0.5, 2, 9, 0], [0.25, 2, 5, 0], operation="reduce_scatter", got=seen))
    got = [[cell.strip() for cell in line.split("|")] for line in lines[-2:]]
    assert got == [["rank 0 gets", "0.75", "4", "", "", ""], ["rank 1 gets", "", "", "14", "0", ""]]


def test_what_ranks_get_is_what_was_seen_and_no_sum() -> None:
    """Of a world that adds wrongly, for one, or after a tensor was changed in flight."""
    lines = picture(scenario(1), two_ranks([0.5], [0.25], got=([7], [7])))
    assert lines[-1].split() == ["every", "rank", "gets", "|", "7", "|"]
    lines = picture(scenario(1), two_ranks([0.5], [0.25], got=([7], [0.75])))
    assert [line.split() for line in lines[-2:]] == [
        ["rank", "0", "gets", "|", "7", "|"],
        ["rank", "1", "gets", "|", "0.75", "|"],
    ]


def test_a_rank_that_never_waits_gets_nothing() -> None:
    lines = picture(scenario(1), two_ranks([0.5], [0.25], got=([0.75], None)))
    assert lines[-2].split() == ["rank", "0", "gets", "|", "0.75", "|"]
    assert lines[-1].strip() == "rank 1 never waits"


def test_of_what_nobody_has_seen_the_picture_says_that_it_is_worked_out() -> None:
    lines = picture(scenario(1), two_ranks([0.5], [0.25]))
    assert lines[-1].split() == ["they", "add", "up", "to", "|", "0.75", "|"]
    assert not any("gets" in line for line in lines)


def test_of_a_run_whose_contents_were_not_recorded_calls_alone_are_shown() -> None:
    calls = [Collective("all_reduce", "sum", "float32", count, -1, "default") for count in (1, 1, 2)]
    assert picture(scenario(1), calls_of(calls[0], calls[1])) == ["1. all_reduce(sum, 1 x float32)"]
    assert picture(scenario(1), calls_of(calls[0], calls[2])) == [
        "1. the ranks disagree",
        "   rank 0 calls all_reduce(sum, 1 x float32)",
        "   rank 1 calls all_reduce(sum, 2 x float32)",
    ]


def test_ranks_of_different_groups_do_not_disagree() -> None:
    alone = [Collective("all_reduce", "sum", "float32", 1, -1, group_label([rank], "1")) for rank in range(2)]
    assert picture(scenario(1), calls_of(*alone)) == [
        "1. all_reduce(sum, 1 x float32) of rank 0 alone",
        "2. all_reduce(sum, 1 x float32) of rank 1 alone",
    ]
    pairs = [Collective("all_reduce", "sum", "float32", 1, -1, group_label(ranks, "1")) for ranks in ((0, 2), (1, 3))]
    four = Scenario(4, (Parameter((1,)),), (Backward(((0,),) * 4), Finish()))
    assert picture(four, calls_of(*pairs, *pairs)) == [
        "1. all_reduce(sum, 1 x float32) among ranks 0, 2",
        "2. all_reduce(sum, 1 x float32) among ranks 1, 3",
    ]


def test_the_picture_of_a_failure_shows_what_the_simulated_world_has_seen(sim: World) -> None:
    """Nobody gets the sum of a bucket for which nobody waits; a tensor that is zeroed in flight may be read as zero."""
    program = Scenario(2, (Parameter((1,)),) * 2, (Backward(((0, 1), (0, 1))), Finish()), bucket_cap=4)
    late = {"asynchrony": Asynchrony("completion", "wait")}
    lines = picture_of(sim, "lockstep.impls.faults.asynchrony:WaitsForTheLast", program, {})
    assert [line for line in lines if "no rank waits" in line] == ["   no rank waits for it"]
    assert sum("every rank gets" in line for line in lines) == 1
    lines = picture_of(sim, "lockstep.impls.faults.asynchrony:ClearsInFlight", program, late)
    assert [line.split("|")[1].split()[-1] for line in lines if "rank" in line and "|" in line][:3] == ["0", "15", "15"]
    lines = picture_of(sim, "lockstep.impls.faults.asynchrony:ClearsInFlight", program, {})
    assert [line.split("|")[1].split()[-1] for line in lines if "rank" in line and "|" in line][:3] == ["3", "15", "18"]


def test_broadcasts_that_may_be_guilty_are_not_only_counted() -> None:
    alike = [Collective("broadcast", "", "float32", count, 0, "default") for count in (1, 2)]
    usual = (RankReport(None, None, tuple(alike)),) * 2
    assert picture(scenario(1), usual) == ["2 broadcasts from rank 0"]
    assert picture(scenario(1), usual, whole=True) == [f"{n}. {call}" for n, call in enumerate(alike, 1)]
    apart = (usual[0], RankReport(None, None, (alike[1], alike[0])))
    assert picture(scenario(1), apart)[:3] == [
        "1. the ranks disagree",
        f"   rank 0 calls {alike[0]}",
        f"   rank 1 calls {alike[1]}",
    ]
    other = Collective("broadcast", "", "float32", 1, 1, "default")
    assert picture(scenario(1), calls_of(other, other)) == [f"1. {other}"]
