"""What is wrong is told defect by defect: causes, what is set aside, and how laws end apart from that."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.oracle.events import Backward, Clip, Finish, Freeze, Raise, Step
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import NAMES, Scenario
from lockstep.properties import test_accumulation, test_collectives, test_mean, test_models, test_start
from lockstep.properties.claims import Claims
from lockstep.properties.defects.aside import Aside
from lockstep.properties.defects.cause import Cause, exact_claim, of_rounding
from lockstep.properties.defects.defect import Defect, the_same
from lockstep.properties.defects.ledger import Ledger
from lockstep.properties.defects.needs import needs
from lockstep.properties.law import law_of
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.reports.matrix import together, totals
from lockstep.properties.reports.overview import as_told, overview
from lockstep.properties.running import telling
from lockstep.properties.running.apart import Docket
from lockstep.properties.running.judging import PLAINEST
from lockstep.properties.running.session import Session
from lockstep.properties.searching.search import search
from lockstep.properties.tests.four_defects import FourDefects
from lockstep.properties.tests.test_bad_input import ROOT, run_pytest
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import SetAside
from lockstep.properties.verdict import listed
from lockstep.worlds.contract import World

MEAN = law_of(test_mean.test_gradients_equal_the_mean_over_ranks)
MORE = (
    law_of(test_collectives.test_every_rank_issues_the_same_collectives),
    law_of(test_accumulation.test_no_sync_accumulates_and_then_counts_once),
    law_of(test_start.test_every_rank_starts_with_the_parameters_of_rank_0),
    law_of(test_models.test_a_real_model_gets_the_mean_gradient_of_the_whole_batch),
    law_of(test_models.test_replicas_of_a_real_model_stay_bitwise_equal),
)
ONE = Parameter((1,))
PLAIN = Scenario(2, (ONE,), (Backward(((0,), (0,))), Finish()))
SWAPPED = Scenario(2, (ONE, ONE), (Backward(((0, 1), (1, 0))), Finish()))


def defect(number: int, *causes: Cause, manner: str = "wrong", claim: str = "") -> Defect:
    face = {"verdict": "silently wrong", "report": "Mine breaks P1", "scenario": repr(PLAIN), "script": "it.py"}
    return Defect(f"D{number}", "mine", causes, "P1", "mean", "P3 sums", "sim", manner, claim, faces=(face,))


def test_the_plainest_program_needs_nothing() -> None:
    assert needs(PLAIN) - PLAINEST == frozenset()
    assert not Cause(frozenset()).within(PLAIN)
    assert Cause(frozenset()).words() == "the plainest program"


def test_a_cause_is_within_what_needs_as_much() -> None:
    cause = Cause(needs(SWAPPED) - PLAINEST)
    assert cause.words() == "different hook orders"
    assert not cause.within(PLAIN)
    larger = Scenario(3, (ONE,) * 3, (Backward(((0, 1, 2), (2, 1, 0), (0, 1, 2))), Finish(), Clip(1.0), Step()))
    assert cause.within(larger)
    assert cause.within((larger, 3))  # with what else a law draws
    assert not Cause(cause.needs, "P18").within(larger, "P1")
    assert Cause(cause.needs, "P18").within(larger, "P18")


def test_whatever_is_unusual_is_told() -> None:
    for scenario in (
        Scenario(3, PLAIN.parameters, (Backward(((0,),) * 3), Finish())),
        Scenario(2, (Parameter(()),), PLAIN.program),
        Scenario(2, (Parameter((1,), trainable=False), ONE), (Backward(((1,), (1,))), Finish())),
        Scenario(2, (ONE,), (Raise("forward"), *PLAIN.program)),
        Scenario(2, (ONE,), (*PLAIN.program, *PLAIN.program)),
        Scenario(2, (ONE,), (*PLAIN.program, Clip(1.0, 1.0))),
    ):
        assert needs(scenario) - PLAINEST, scenario


def test_the_claim_that_says_just_a_cause_is_named() -> None:
    assert exact_claim(Claims(), Cause(needs(SWAPPED) - PLAINEST), SWAPPED) == "hook_order"
    both = Scenario(2, (Parameter(()), ONE), SWAPPED.program)
    assert exact_claim(Claims(), Cause(needs(both) - PLAINEST), both) == ""
    scalar = Scenario(2, (Parameter(()),), PLAIN.program)
    assert exact_claim(Claims(), Cause(needs(scalar) - PLAINEST), scalar) == "scalars"


def test_programs_with_one_cause_are_one_defect_and_two_causes_are_two() -> None:
    known = [defect(1, Cause(frozenset({"clip", "3 ranks"})))]
    again = the_same(known, Cause(frozenset({"clip", "2 windows"})), {"in another way"})
    assert again is not None
    assert again.causes == (Cause(frozenset({"clip"})),)
    assert the_same(known, Cause(frozenset({"raise"})), {"wrong"}) is None
    wider = the_same([defect(1, Cause(frozenset({"clip", "raise"})))], Cause(frozenset({"clip"})), {"silent", "wrong"})
    assert wider is not None
    assert wider.causes == (Cause(frozenset({"clip"})),)
    assert the_same(known, Cause(frozenset({"clip"}), "P18"), {"wrong"}) is None
    assert the_same(known, Cause(frozenset({"clip", "raise"})), {"in another way"}) is None


def test_of_a_defect_in_a_claim_whatever_its_values_are_programs_without_it_are_drawn() -> None:
    known = defect(1, Cause(frozenset({"buffers"})), claim="buffers")
    assert Aside([known], MEAN, Claims(buffers="each")).unclaimed == Claims()


def test_rounding_is_one_cause_and_numbers_that_fit_are_drawn_on() -> None:
    known = defect(1, of_rounding("bfloat16"))
    assert known.words() == "numbers with more digits than bfloat16"
    assert the_same([known], of_rounding("bfloat16"), {"in another way"}) == known
    aside = Aside([known], MEAN, Claims())
    assert aside.unclaimed == Claims(wire_dtype="bfloat16")
    aside(PLAIN)
    aside.count_undrawn(Claims(), 7)
    assert aside.left_out == {"D1": 7}


def test_a_failure_of_the_rounding_that_is_set_aside_does_not_count_and_another_one_does(sim: World) -> None:
    aside = Aside([defect(1, of_rounding("bfloat16"))], MEAN, Claims())
    narrow = trial_of("lockstep.impls.faults.precision:ReducesInBfloat16", sim)
    (failure,) = search(MEAN, narrow, 20, seed_value=0, shrink=False).failures
    with pytest.raises(SetAside):
        aside.excuse(narrow, failure.broken)
    assert aside.left_out == {"D1": 1}
    wrong = trial_of("lockstep.impls.faults.mean:NeverDivides", sim)
    (failure,) = search(MEAN, wrong, 20, seed_value=0, shrink=False).failures
    aside.excuse(wrong, failure.broken)
    assert aside.left_out == {"D1": 1}


def test_what_is_trained_again_was_frozen_before() -> None:
    scenario = Scenario(2, (ONE,), (Freeze((0,)), Freeze((0,), frozen=False), *PLAIN.program))
    cause = Cause(needs(scenario) - PLAINEST)
    assert cause.words() == "parameters that are trained again"


def test_a_program_contains_what_goes_without_saying_of_it() -> None:
    of_the_other = (Backward(((1,), (1,))), Finish())
    frozen = Scenario(2, (ONE, ONE), (Freeze((0,)), *of_the_other))
    cause = Cause(needs(frozen) - PLAINEST)
    again = replace(frozen, program=(frozen.program[0], Freeze((0,), frozen=False), *of_the_other))
    assert not needs(frozen) <= needs(again)
    assert cause.within(again)
    only_again = Scenario(2, (replace(ONE, trainable=False), ONE), (Freeze((0,), frozen=False), *of_the_other))
    assert not cause.within(only_again)


def test_what_is_frozen_from_the_start_or_later_is_one_defect_if_it_goes_wrong_in_one_manner() -> None:
    known, later = [defect(1, Cause(frozenset({"frozen parameters"})))], Cause(frozenset({"freeze", "Freeze"}))
    again = the_same(known, later, {known[0].manner})
    assert again is not None
    assert again.causes == (known[0].causes[0], later)
    assert the_same([again], Cause(later.needs | {"3 ranks"}), {known[0].manner}) == again
    assert the_same(known, later, {"in another way"}) is None


def test_what_is_trained_again_is_one_defect_however_it_came_to_be_frozen() -> None:
    again = "parameters that are trained again"
    known = [defect(1, Cause(frozenset({"frozen parameters", again})))]
    later = Cause(frozenset({"zero grad", "2 windows", again}))
    found = the_same(known, later, {known[0].manner})
    assert found is not None
    assert found.causes == (known[0].causes[0], later)
    assert the_same(known, later, {"in another way"}) is None
    assert the_same(known, Cause(frozenset({"zero grad", "clip", again})), {known[0].manner}) is None
    never = [defect(1, Cause(frozenset({"frozen parameters"})))]
    assert the_same(never, Cause(frozenset({"zero grad"})), {known[0].manner}) is None


def test_all_processes_of_a_run_know_of_a_defect_and_in_one_order(tmp_path: Path) -> None:
    mine, others = Ledger(tmp_path), Ledger(tmp_path)
    mine.file(defect(1, Cause(frozenset({"clip"}), "P9"), claim="float64"))
    assert others.defects("mine") == mine.defects()
    assert others.next_id("mine") == "D2"
    assert others.defects("theirs") == ()
    mine.done(0)
    mine.wait_to_judge(1)  # for all laws before it have ended
    others.wait_to_begin(1)
    mine.done(1)
    others.wait_to_begin(2)


def filed(number: str, law: str, verdict: str, **more: Any) -> Mapping[str, Any]:
    return {"number": number, "law": law, "implementation": "mine", "world": "sim", "verdict": verdict, **more}


def test_a_real_model_contains_what_a_program_may_have_too() -> None:
    frozen = Cause(
        needs(Scenario(2, (replace(ONE, trainable=False), ONE), (Backward(((1,), (1,))), Finish()))) - PLAINEST
    )
    assert frozen.within(ModelScenario(frozen="second"))
    assert not frozen.within(ModelScenario())
    assert not frozen.within(ModelScenario(frozen="second", thaws=1, local=(0, 0)))
    assert Cause(frozenset({"accumulation", "2 micro-batches"})).within(ModelScenario(local=(1,)))


def test_defects_that_touch_different_things_are_told_one_by_one(tmp_path: Path) -> None:
    laws = [law.name for law in (MEAN, *MORE)]
    session = Session(FourDefects, examples=15, seed=5, laws=laws, report=tmp_path)
    docket = Docket()
    try:
        for law in session.held(probed=False, docket=docket):
            with contextlib.suppress(pytest.fail.Exception):
                law.run(lambda name, value: None)
    finally:
        session.close()
    found = docket.ledger.defects()
    assert sorted(each.words() for each in found) == [
        "accumulation, nested",
        "different hook orders",
        "frozen parameters",
        "scalars",
    ]
    for each in found:  # and none on a program that shows another one, too
        for face in each.faces:
            there = [other.id for other in found if other.within(eval(face["scenario"], dict(NAMES)), "")]
            assert there == [each.id], face["scenario"]


def test_the_end_of_a_run_is_told_by_defects_and_families() -> None:
    laws = [filed("P1", f"law {n}", "holds", examples=10) for n in range(12)]
    laws += [filed("P1", "mean", "broken by D1"), filed("P3", "sums", "holds apart from D1")]
    laws += [filed("P6", "unused", "not claimed; tried: crashes"), filed("P6", "never", "not claimed")]
    known = [defect(1, Cause(frozenset({"clip"}))).filed]
    assert overview(laws, known) == [
        "mine has 1 defect. Without it, every claimed law holds.",
        "  D1  silently wrong",
        "      Breaks: P1 mean",
        "      Needs:  clip",
        "      Script: it.py",
        "  Laws by family:",
        "  P1  Mean over ranks          12 hold, 1 broken by D1",
        "  P3  Gradient accumulation    1 holds apart from D1",
        "  Not claimed: 2 laws (-v lists them). Lockstep tried 1 of them on a few programs: 1 crashes. "
        "These fail no run.",
    ]
    also = [*laws[:-2], filed("P3", "steps", "broken by D1", broken_by=["D1"])]
    assert overview(also, known)[3] == "      Also:   P3 steps"
    assert overview(laws, known, complete=False)[0] == "mine has 1 defect. Without it, every checked law holds."
    so_far = "so far. The run was stopped before every law was checked."
    assert overview(laws, known, complete=False, stopped=True)[0] == f"mine has 1 defect {so_far}"
    assert overview(laws[:3], [], complete=False, stopped=True)[0] == f"mine: no defect was found {so_far}"


def test_the_law_that_a_defect_breaks_is_told_as_broken_whatever_law_met_it_first() -> None:
    known = [defect(1, Cause(frozenset({"clip"}))).filed]
    rows = [
        filed("P1", "mean", "holds apart from D1", left_out={"D1": 3}),
        filed("P2", "scale", "holds apart from D1", left_out={"D1": 3}),
        filed("P3", "sums", "broken by D1", broken_by=["D1"]),
    ]
    ends = [each["verdict"] for each in as_told(rows, known)]
    assert ends == ["broken by D1", "holds apart from D1", "broken by D1"]
    assert as_told([{**rows[0], "law": "another"}], known)[0]["verdict"] == "holds apart from D1"
    drew_none = filed("P1", "mean", "holds")
    assert as_told([drew_none], known)[0]["verdict"] == "broken by D1"
    assert as_told([{**drew_none, "world": "gloo"}], known)[0]["verdict"] == "holds"


def test_laws_that_differ_in_their_defects_alone_are_counted_together() -> None:
    verdicts = {"holds": 3, "holds apart from D2": 2, "holds apart from D10 and D2": 4, "broken by D1": 1}
    verdicts |= {"cannot be judged": 2, "cannot be judged: D1 breaks every program that it needs": 1, "refuses": 2}
    assert together(Counter(verdicts)) == {
        "holds": 3,
        "holds apart from D2 and D10": 6,
        "broken by D1": 1,
        "cannot be judged": 3,
        "refuses": 2,
    }
    alone = Counter({"cannot be judged: D1 breaks the plainest program": 2})
    assert together(alone) == alone
    assert listed({"D10", "D2", "D1"}) == "D1, D2 and D10"


def test_a_run_that_has_ended_no_law_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "EVERY", 0.0)
    lines: list[str] = []
    teller = telling.Teller(Ledger(), lines.append)
    teller.watch()
    try:
        for _ in range(200):
            if lines:
                break
            time.sleep(0.05)
    finally:
        teller.close()
    assert lines[0].startswith("no law has ended yet")
    teller.ended({"examples": 7})
    assert lines[-1].startswith("1 law, 7 examples, 0 defects")


def test_the_total_is_the_sum_of_the_numbers_behind_the_laws() -> None:
    rows = [
        filed("P1", "mean", "holds", examples=20, runs=139),
        filed("P2", "scale", "holds", examples=20),
        filed("P3", "sums", "not claimed"),
    ]
    assert totals(rows) == "40 examples, judged 159 times; verdicts: 2 hold, 1 not claimed"
    assert totals(rows[1:]) == "20 examples; verdicts: 1 holds, 1 not claimed"


@pytest.mark.parametrize("processes", ["0", "2"])
def test_where_the_plainest_program_fails_nothing_else_is_told(tmp_path: Path, processes: str) -> None:
    """The report comes at once, and the other laws are not tried."""
    asked = (str(ROOT / "properties" / "test_scale.py"), "--impl", "lockstep.impls.faults.mean:NeverDivides")
    page = tmp_path / "page.html"
    how = ("--hypothesis-seed", "1", "-n", processes, "--maxschedchunk", "1", "--html", str(page))
    code, output = run_pytest(tmp_path, *asked, *how)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "NeverDivides has 1 defect. The plainest program fails, so nothing else can be judged." in output
    assert output.count("What went over the wire:") == 1
    assert "\nD1, after" in output
    assert re.search(r"P2 +gradients scale with the loss +cannot be judged: D1 breaks the plainest program", output)
    shown = page.read_text("utf-8")
    assert '<section class="defect" id="1-D1">' in shown
    for words in ("NeverDivides breaks P1 on the sim world: silently wrong", "broken by D1", 'class="collective"'):
        assert words in shown
    assert not [word for word in ("src=", "@import", "url(", "<link", "fetch(") if word in shown]
