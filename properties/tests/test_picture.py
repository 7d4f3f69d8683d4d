"""The picture of what went over the wire fits on a screen, and shows where different parameters meet."""

from dataclasses import replace

import numpy as np

from oracle.fingerprint import coefficients
from oracle.program import Backward, Finish, Parameter, Scenario
from properties.picture import LINE, WIDEST, picture
from worlds.contract import Collective, RankReport


def two_ranks(*sent: list[float], operation: str = "all_reduce") -> tuple[RankReport, ...]:
    """What two ranks that agree on one reduction have sent."""
    call = Collective(operation, "sum", "float32", len(sent[0]), -1, "default")
    return tuple(RankReport(None, None, (replace(call, sent=np.array(row, np.float32)),)) for row in sent)


def scenario(count: int) -> Scenario:
    """Two ranks, two parameters of so many elements, one micro-batch."""
    return Scenario(2, (Parameter((count,)),) * 2, (Backward(((0, 1), (1, 0))), Finish()))


def test_of_many_long_numbers_those_are_shown_that_fit_on_a_line() -> None:
    lines = picture(scenario(1), two_ranks(*([123456.0 + rank + i for i in range(40)] for rank in range(2))))
    assert [line.count("|") for line in lines[1:]] == [12] * 3  # ten cells and the dots
    assert all(line.endswith("| ... |") for line in lines[1:])
    lines = picture(scenario(1), two_ranks(*([1e-30 / 3 + rank + i / 7 for i in range(40)] for rank in range(2))))
    shown = [line.partition("| ")[2].removesuffix(" | ... |") for line in lines[1:]]
    assert max(map(len, shown)) <= LINE
    assert 3 < lines[1].count("|") < WIDEST + 2


def test_a_collective_of_nothing_has_a_picture() -> None:
    lines = picture(scenario(1), two_ranks([], []))
    assert lines[1].split("|")[1].strip() == ""
    assert "..." not in lines[1]


def test_different_parameters_that_meet_are_marked() -> None:
    program = scenario(1)
    first, second = (coefficients(program, rank)[0] for rank in range(2))
    lines = picture(program, two_ranks([float(first[0][0])], [float(second[1][0])]))
    assert "a[0] = " in lines[1]
    assert "b[0] = " in lines[2]
    assert lines[3].endswith("different parameters meet here")


def test_a_flag_that_is_called_like_a_gradient_is_not_taken_for_one() -> None:
    """Rank 0's a[0] is 1, and so is the flag that it alone sends."""
    program = scenario(1)
    first, second = ([float(each[0]) for each in coefficients(program, rank)[0]] for rank in range(2))
    assert first[0] == 1
    lines = picture(program, two_ranks([*first[::-1], 1, 1], [*second[::-1], 1, 0]))
    assert [cell.strip() for cell in lines[1].split("|")[1:-1]] == [f"b[0] = {first[1]:g}", "a[0] = 1", "1", "1"]
    assert not any("different parameters" in line for line in lines)


def test_what_each_rank_gets_of_a_scattered_sum_stands_below_its_columns() -> None:
    lines = picture(scenario(1), two_ranks([0.5, 2, 9, 0], [0.25, 2, 5, 0], operation="reduce_scatter"))
    got = [[cell.strip() for cell in line.split("|")] for line in lines[-2:]]
    assert got == [["rank 0 gets", "0.75", "4", "", "", ""], ["rank 1 gets", "", "", "14", "0", ""]]
