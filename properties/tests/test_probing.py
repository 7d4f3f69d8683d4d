"""Code that declares nothing is tried where nothing is claimed for it, and told what came of it; that fails no run."""

from collections.abc import Callable
from typing import Any

import pytest

from lockstep.properties.catalogue import every_law
from lockstep.properties.implementations import look_up
from lockstep.properties.law import concerns
from lockstep.properties.reports.matrix import PROPERTY, matrix, totals, verdicts
from lockstep.properties.running.hold import hold
from lockstep.properties.running.probing import alternatives
from lockstep.properties.running.selection import is_held
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import World

USER = "lockstep.properties.tests.user_code:ReducesEachGradient"


def filing(filed: dict[str, Any], name: str) -> Callable[[str, Any], None]:
    def file(_: str, value: Any) -> None:
        filed[name] = value

    return file


def test_what_is_not_claimed_is_probed_and_told_in_the_same_words_without_failing(
    sim: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's class leaves a parameter that one rank did not use to the others' all-reduces."""
    monkeypatch.setattr("lockstep.properties.running.probing.EXAMPLES", 6)
    (undeclared,) = look_up([USER], sim)
    probed = {name: law for name, law in every_law().items() if alternatives(law, undeclared)}
    filed: dict[str, Any] = {}
    for name, law in probed.items():
        assert not concerns(law, undeclared.claims)
        hold(law, Trial(undeclared, sim), filing(filed, name))
    verdict = filed["test_a_parameter_without_a_gradient_is_left_alone_by_the_step"]["verdict"]
    assert verdict.startswith("not claimed; tried: ")
    assert any(verdict.endswith(how) for how in ("hangs", "crashes", "silently wrong"))  # by what was drawn
    assert all(each["verdict"].startswith("not claimed; tried: ") for each in filed.values())


def test_what_ships_is_probed_where_it_is_named_and_says_nothing_and_then_alone(sim: World) -> None:
    (naive,) = look_up(["lockstep.impls.naive:NaiveDataParallel"], sim)
    probed = [law for law in every_law().values() if alternatives(law, naive)]
    assert probed
    assert all(
        is_held(law, naive, "sim", probed=True) and not is_held(law, naive, "gloo", probed=True) for law in probed
    )
    assert not any(is_held(law, naive, "sim", probed=False) for law in probed)


class Report:
    """A report of pytest's, as far as it matters here."""

    def __init__(self, **filed: Any) -> None:
        self.when, self.user_properties = "call", [(PROPERTY, filed)]


def test_the_matrix_counts_examples_by_world_and_in_all() -> None:
    common = {"implementation": "my:DDP", "number": "P1", "law": "a law"}
    reports = [
        Report(**common, world="sim", verdict="holds", examples=97),
        Report(**common, world="gloo", verdict="holds", examples=10),
        Report(**{**common, "number": "P10"}, world="sim", verdict="not claimed; tried: hangs", examples=1),
        Report(**{**common, "number": "P9"}, world="sim", verdict="crashes", examples=2),
        Report(**{**common, "number": "P9"}, world="gloo", verdict="silently wrong", examples=3),
    ]
    filed = verdicts(reports, [("my:DDP", "P3", "another", ""), ("your:DDP", "P3", "another", "")])
    assert [" ".join(line.split()) for line in [*matrix(filed), totals(filed)]] == [
        "my:DDP",
        "P1 a law holds on sim (97) and gloo (10)",
        "P3 another not claimed",
        "P9 a law crashes on sim (2); silently wrong on gloo (3)",
        "P10 a law not claimed; tried: hangs on sim (1)",
        "113 examples; verdicts: 2 hold, 1 crashes, 1 silently wrong, 2 not claimed",
    ]


def test_laws_that_are_not_claimed_are_counted_where_they_are_not_listed() -> None:
    left_out = [("my:DDP", "P3", law, "") for law in ("another", "a third")]
    filed = verdicts(
        [Report(implementation="my:DDP", number="P1", law="a law", world="sim", verdict="holds")], left_out
    )
    told = [" ".join(line.split()) for line in matrix(filed, folded=True)]
    more = "2 more laws are not claimed (-v lists them; `lockstep claims` explains claims)."
    assert told == ["my:DDP", "P1 a law holds on sim", more]


def test_the_matrix_says_what_was_refused_most_often_over_all_laws() -> None:
    common = {
        "implementation": "my:DDP",
        "number": "P1",
        "world": "sim",
        "verdict": "holds",
        "examples": 9,
        "refused": 4,
    }
    kinds = {"ValueError: no scalars": 2, "ValueError: too\n many": 2, "of two": 1, "of one": 1}
    filed = [Report(**common, law=law, refusals=kinds) for law in ("a law", "another")]
    assert [" ".join(line.split()) for line in matrix(verdicts(filed))] == [
        "my:DDP",
        "P1 a law holds on sim (9, 4 refused)",
        "P1 another holds on sim (9, 4 refused)",
        "4 refused: ValueError: no scalars",
        "4 refused: ValueError: too many",
        "2 refused: of two",
        "2 refused for other reasons",
    ]
