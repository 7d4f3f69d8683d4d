"""The picture of what went over the wire fits on a screen, and shows where different parameters meet."""

from dataclasses import replace

import numpy as np

from oracle.fingerprint import coefficients
from oracle.program import Backward, Finish, Parameter, Scenario
from properties.picture import LINE, WIDEST, picture
from worlds.contract import Collective, RankReport


def two_ranks(*sent: list[float]) -> tuple[RankReport, ...]:
    """What two ranks that agree on one all-reduce have sent."""
    call = Collective("all_reduce", "sum", "float32", len(sent[0]), -1, "default")
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
