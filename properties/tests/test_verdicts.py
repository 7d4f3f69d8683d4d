"""What is judged how: errors on the ranks, and every kind of value that the oracle speaks of."""

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st

from lockstep.oracle.events import (
    Backward,
    Clip,
    Finish,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    Unscale,
    Write,
    ZeroGrad,
)
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.model import Buffer, Group, Hyperparameters, LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import Inside
from lockstep.properties import test_mean
from lockstep.properties.claims import Claims
from lockstep.properties.diagnosing.confirming import printed
from lockstep.properties.errors import judge_errors
from lockstep.properties.events import event_words
from lockstep.properties.failure_place import note, place_of
from lockstep.properties.implementations import Implementation
from lockstep.properties.judging.judge import (
    compare,
    holds,
    pairs,
    replicas_equal,
    runs_agree,
    runs_equal,
    values_equal,
)
from lockstep.properties.law import law_of
from lockstep.properties.naming import model_words
from lockstep.properties.running.hold import hold
from lockstep.properties.searching.search import UNRUNNABLE
from lockstep.properties.seen import Seen
from lockstep.properties.trial import Run, Trial, job
from lockstep.properties.verdict import Crashes, Refused, SilentlyWrong
from lockstep.worlds.contract import Outcome, RankError, RankReport, World, raised

WINDOW = (Backward(((0, 1), (1, 0))), Finish(), Step(), ZeroGrad())
PAIR = (Parameter((1,)), Parameter((1,)))


def every_rank_raises(place: int, message: str = "ValueError: no third batch", deliberate: bool = True) -> Outcome:
    return (RankReport(None, RankError("raised", message, "", (note(place, WINDOW * 3),), deliberate)),) * 2


@pytest.mark.parametrize("place", range(3))
def test_an_error_of_every_rank_before_any_step_is_a_refusal(place: int) -> None:
    with pytest.raises(Refused, match="no third batch"):
        judge_errors(Scenario(2, PAIR, WINDOW[:2] + WINDOW), every_rank_raises(place))


@pytest.mark.parametrize("place", range(2, 8))
def test_an_error_of_every_rank_in_or_after_a_step_is_a_crash(place: int) -> None:
    with pytest.raises(Crashes, match="every rank: raised ValueError: no third batch"):
        judge_errors(Scenario(2, PAIR, WINDOW * 2), every_rank_raises(place))


def test_what_is_not_implemented_is_refused_where_it_is_asked_for_first_even_after_a_step() -> None:
    """A norm of a kind that was not asked for before; a second of its kind would have been there."""
    program = (*WINDOW, *WINDOW[:2], Clip(1.0, 2.0), Clip(1.0, 3.0), Clip(1.0, 3.0))
    message = "NotImplementedError: only the 2-norm"
    with pytest.raises(Refused, match="only the 2-norm"):
        judge_errors(Scenario(2, PAIR, program), every_rank_raises(7, message))
    for place in (5, 8):
        with pytest.raises(Crashes):
            judge_errors(Scenario(2, PAIR, program), every_rank_raises(place, message))


def test_to_zero_gradients_otherwise_is_asked_for_first_where_they_were_dropped_before() -> None:
    program = (*WINDOW, ZeroGrad(), *WINDOW, ZeroGrad(False), *WINDOW, ZeroGrad(False))
    message = "NotImplementedError: gradients can only be dropped"
    first = program.index(ZeroGrad(False))
    with pytest.raises(Refused, match="can only be dropped"):
        judge_errors(Scenario(2, PAIR, program), every_rank_raises(first, message))
    with pytest.raises(Crashes):
        judge_errors(Scenario(2, PAIR, program), every_rank_raises(len(program) - 1, message))


def test_where_a_rank_failed_is_read_as_it_was_noted() -> None:
    for place in range(-1, len(WINDOW)):
        assert place_of(["the user's own", note(place, WINDOW)]) == place
    assert note(len(WINDOW), WINDOW) == "after event 3"  # in saving at the end
    assert place_of([note(len(WINDOW), WINDOW)]) == 3
    assert place_of(["in event handlers", "while it was constructed, or later"]) is None


def test_ranks_that_refuse_may_say_which_they_are() -> None:
    outcome = tuple(
        RankReport(None, RankError("raised", f"ValueError: rank {rank} has no scalars", "", (note(0, WINDOW),), True))
        for rank in range(2)
    )
    with pytest.raises(Refused, match="rank 0 has no scalars"):
        judge_errors(Scenario(2, PAIR, WINDOW), outcome)


def test_ranks_that_refuse_may_say_where_something_lies() -> None:
    errors = [
        RankError("raised", f"ValueError: <Group at {hex(0x7F1A0B + rank)}> is unknown", "", (), True)
        for rank in range(4)
    ]
    told = tuple(RankReport(None, replace(error, notes=(note(-1, WINDOW),))) for error in errors)
    with pytest.raises(Refused, match="is unknown"):
        judge_errors(Scenario(2, PAIR, WINDOW), told)


def test_an_error_that_explains_nothing_or_is_no_refusal_by_its_name_is_a_crash() -> None:
    for message in ("ValueError: ", "KeyError: 3"):
        with pytest.raises(Crashes):
            judge_errors(Scenario(2, PAIR, WINDOW), every_rank_raises(0, message))


@pytest.mark.parametrize(("message", "end"), [("KeyError: 3", "KeyError: 3."), ("KeyError: no!", "KeyError: no!")])
def test_what_is_told_of_an_error_is_a_sentence(message: str, end: str) -> None:
    outcome = (RankReport(None, RankError("raised", message, "")), RankReport({}, None))
    with pytest.raises(Crashes) as crashed:
        judge_errors(Scenario(2, PAIR, WINDOW), outcome)
    assert crashed.value.headline == f"rank 0 raised {end}"


def refuses_on_purpose() -> None:
    raise ValueError("too many values to unpack (expected 2)")


def slips() -> None:
    _, _ = range(3)


@pytest.mark.parametrize(("runs", "verdict"), [(refuses_on_purpose, Refused), (slips, Crashes)])
@pytest.mark.parametrize("where", [note(0, WINDOW), note(-1, WINDOW)])
def test_an_operation_that_goes_wrong_on_every_rank_is_no_refusal(
    runs: Callable[[], None], verdict: type[Exception], where: str
) -> None:
    with pytest.raises(ValueError, match="too many values to unpack") as caught:
        runs()
    caught.value.add_note(where)
    with pytest.raises(verdict, match="too many values to unpack"):
        judge_errors(Scenario(2, PAIR, WINDOW), (RankReport(None, raised(caught.value)),) * 2)


@pytest.mark.parametrize("kind", [AssertionError, ValueError])
def test_an_error_without_words_is_told_with_the_line_that_raised_it(kind: type[Exception]) -> None:
    """As of a bare assert; and is no refusal, which would have to say what is refused."""
    with pytest.raises(kind) as caught:
        raise kind
    caught.value.add_note(note(0, WINDOW))
    with pytest.raises(Crashes, match=f"every rank: raised {kind.__name__}: raise kind in event 0"):
        judge_errors(Scenario(2, PAIR, WINDOW), (RankReport(None, raised(caught.value)),) * 2)


class Threaded:
    """Averages in a thread of its own, which only a real process can have."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def __call__(self, *arguments: Any) -> Any:
        return self.module(*arguments)

    def finish_gradient_synchronization(self) -> None:
        thread = threading.Thread(target=self._average, name="averager")
        thread.start()
        thread.join()

    def _average(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad /= dist.get_world_size()
                dist.all_reduce(parameter.grad)


def test_what_communicates_from_a_thread_of_its_own_is_not_runnable_on_sim_and_holds_on_gloo(
    sim: World, gloo: World
) -> None:
    threaded, filed = Implementation(f"{__name__}:Threaded", Claims(accumulation=False)), list[Any]()
    law = law_of(test_mean.test_gradients_equal_the_mean_over_ranks)
    with pytest.raises(pytest.skip.Exception, match=r"not runnable on the sim world: rank . .*averager"):
        hold(law, Trial(threaded, sim), lambda _, value: filed.append(value))
    hold(law, Trial(threaded, gloo), lambda _, value: filed.append(value))
    assert [each["verdict"] for each in filed] == ["not runnable here", "holds"]
    assert filed[0]["examples"] == UNRUNNABLE


def test_an_error_of_lockstep_s_own_is_raised_and_is_a_verdict_of_nobody(sim: World) -> None:
    def draws(claims: Claims) -> st.SearchStrategy[Scenario]:
        return st.none().map(lambda _: Scenario(0, PAIR, ()))

    filed = list[Any]()
    law = replace(law_of(test_mean.test_gradients_equal_the_mean_over_ranks), draws=draws)
    with pytest.raises(ValueError, match="rank"):
        hold(
            law,
            Trial(Implementation("lockstep.impls.naive:NaiveDataParallel", Claims()), sim),
            lambda _, value: filed.append(value),
        )
    assert [each["verdict"] for each in filed] == ["not judged: error in Lockstep"]


RICH = Scenario(
    2,
    PAIR,
    (Backward(((0, 1), (1, 0))), Finish(), Clip(1.0), Step(), ZeroGrad()) * 2,
    optimizer="AdamW",
    hyperparameters=Hyperparameters(weight_decay=0.5),
    loss_scale=LossScale(2.0, 1),
    buffers=(Buffer((2,)),),
)
DAMAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the norm": (lambda seen: seen["norms"][2].__imul__(2), "after event 2, the norm of all gradients is"),
    "a gradient": (lambda seen: seen["gradients"][7][1].__imul__(2), r"after event 7, b.grad\[0\] is"),
    "a parameter": (lambda seen: seen["parameters"][3][0].__iadd__(1), r"after event 3, a\[0\] is"),
    "a moment": (lambda seen: seen["states"][8][0]["exp_avg"].__imul__(2), r"after event 8, exp_avg of a\[0\] is"),
    "a missing moment": (lambda seen: seen["states"][8][0].pop("exp_avg"), "exp_avg of a.* is None where"),
    "a step count": (lambda seen: seen["states"][8][1]["step"].__iadd__(1), "step of b is 3.0 where it must be 2.0"),
    "the loss scale": (lambda seen: seen["loss_scales"].update({8: 4.0}), "the loss scale is 4 where it must be 8"),
    "a buffer": (lambda seen: seen["buffers"][5][0].__iadd__(1), r"after event 5, buffer0\[0\] is"),
}


def rich_run(sim: World) -> Run:
    return Run(RICH, sim.run(job("lockstep.impls.static_buckets:StaticBuckets", RICH)), trained=None)


def test_a_program_with_every_kind_of_value_is_right_undamaged(sim: World) -> None:
    values_equal(rich_run(sim), interpret(RICH), "All values are right.")


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_any_kind_of_value_on_one_rank_is_seen_and_named(sim: World, damage: str) -> None:
    run, (do, words) = rich_run(sim), DAMAGES[damage]
    do(run.observations[1])
    with pytest.raises(SilentlyWrong, match=words) as wrong:
        values_equal(run, interpret(RICH), "All values are right.")
    assert "On rank 1" in str(wrong.value)


@pytest.mark.parametrize("damage", ["a gradient", "a parameter"])
@pytest.mark.parametrize("rank", [0, 1])
def test_two_runs_are_equal_on_every_rank_in_gradients_and_parameters_alike(sim: World, damage: str, rank: int) -> None:
    run, (do, words) = rich_run(sim), DAMAGES[damage]
    runs_equal(run, rich_run(sim), "The runs are alike.")
    do(run.observations[rank])
    with pytest.raises(SilentlyWrong, match=f"The runs are alike. On rank {rank}, {words}"):
        runs_equal(run, rich_run(sim), "The runs are alike.")


@pytest.mark.parametrize("damage", ["a gradient", "a parameter"])
def test_of_two_runs_that_differ_the_wrong_one_is_told_whichever_comes_first(sim: World, damage: str) -> None:
    right, wrong, (do, words) = rich_run(sim), rich_run(sim), DAMAGES[damage]
    expected = interpret(RICH)
    runs_agree(right, wrong, expected, "The result changes.")
    do(wrong.observations[1])
    for pair in ((right, wrong), (wrong, right)):
        with pytest.raises(SilentlyWrong, match=f"The result changes. On rank 1, {words}") as told:
            runs_agree(*pair, expected, "The result changes.")
        assert told.value.difference is not None
        assert told.value.outcome is wrong.outcome
    do(wrong.observations[0])
    runs_agree(wrong, wrong, expected, "The result changes.")  # both are wrong alike: another law says that


@pytest.mark.parametrize("damage", ["a parameter", "a moment", "a missing moment", "a step count"])
def test_replicas_are_equal_in_parameters_and_optimizer_state_alike(sim: World, damage: str) -> None:
    run = rich_run(sim)
    replicas_equal(run, "Replicas are alike.")
    DAMAGES[damage][0](run.observations[1])
    with pytest.raises(SilentlyWrong, match=r"Replicas are alike\. On rank 1, "):
        replicas_equal(run, "Replicas are alike.")


def test_what_is_outside_an_interval_is_shown_with_the_interval(sim: World) -> None:
    run = rich_run(sim)
    run.observations[0]["states"][3][1]["exp_avg"][:] = np.nan
    with pytest.raises(SilentlyWrong, match=r"exp_avg of b\[0\] is nan where it must be in \[0\.\d+, 0\.\d+\]"):
        values_equal(run, interpret(RICH), "All values are right.")


def test_a_rich_program_is_told_in_words() -> None:
    assert model_words(RICH) == (
        "2 ranks; parameters a (1 float32), b (1 float32); AdamW with weight decay 0.5; "
        "loss scale 2, doubled after 1 steps; buffers (2)"
    )
    told = [line for place in range(5) for line in event_words(RICH, place)]
    assert told[3:] == [
        "clip: gradients to a global 2-norm of at most 1",
        "step: AdamW with learning rate 0.5",
        "zero_grad: gradients become None",
    ]


def test_a_step_is_told_with_the_learning_rates_that_it_has() -> None:
    faster = SetHyperparameters(Hyperparameters(learning_rate=1.0), group=0)
    program = (*WINDOW, faster, *WINDOW, SaveAndLoad(optimizer=False), *WINDOW)
    group = Group((1,), Hyperparameters(learning_rate=0.25))
    scenario = Scenario(2, PAIR, program, groups=(group,))
    told = [event_words(scenario, place) for place, event in enumerate(program) if isinstance(event, Step)]
    assert told == [
        ["step: SGD with learning rates 0.5, 0.25"],
        ["step: SGD with learning rates 1, 0.25"],
        ["step: SGD with learning rates 0.5, 0.25"],
    ]
    idle = Scenario(2, PAIR, (*WINDOW, Step(), *WINDOW))
    assert [event_words(idle, place) for place in (2, 4)] == [
        ["step: SGD with learning rate 0.5"],
        ["step, without any gradient: SGD with learning rate 0.5"],
    ]
    apart = Scenario(2, PAIR, (*WINDOW[:2], Step((1,)), *WINDOW, *WINDOW[:2], Step((1, 0))), groups=(group,))
    assert [event_words(apart, place) for place in (2, 5, 9)] == [
        ["step of the optimizer of b: SGD with learning rate 0.25"],
        ["step of the optimizer of a, then of that of b: SGD with learning rates 0.5, 0.25"],
        ["step of the optimizer of b, then of that of a: SGD with learning rates 0.25, 0.5"],
    ]
    assert model_words(apart).endswith("; group of b with learning rate 0.25; an optimizer for each group")
    assert event_words(replace(apart, program=(Write((0, 1)), *WINDOW)), 0) == [
        "write: the caller writes into a, b the negative of what is there"
    ]
    everything_in_a_group = Scenario(2, PAIR, WINDOW, groups=(replace(group, parameters=(0, 1)),))
    assert event_words(everything_in_a_group, 2) == ["step: SGD with learning rate 0.25"]


def test_a_step_is_told_with_what_becomes_of_the_loss_scale() -> None:
    overflow = Backward(((0, 1), (1, 0)), overflow=(0, 1))
    skipped = (overflow, Finish(), Unscale(), Clip(1.0), Step(), ZeroGrad())
    program = (*skipped, *WINDOW, *WINDOW, SaveAndLoad(False), *WINDOW)
    scenario = Scenario(2, PAIR, program, loss_scale=LossScale(2.0, 2))
    expected = interpret(scenario)
    told = [event_words(scenario, place, expected) for place, event in enumerate(program) if isinstance(event, Step)]
    assert told == [
        ["step: to be skipped, as a gradient overflowed on ranks 0, 1; the loss scale becomes 1"],
        ["step: SGD with learning rate 0.5"],
        ["step: SGD with learning rate 0.5; the loss scale becomes 2"],
        ["step: SGD with learning rate 0.5"],
    ]
    (clipped,) = event_words(scenario, 3)
    assert clipped == "clip: gradients to a global 2-norm of at most 1; what becomes of them after an overflow is open"
    assert event_words(scenario, 4) == ["step: SGD with learning rate 0.5"]


def test_a_value_of_another_dtype_is_no_member_of_an_interval_and_is_told(sim: World) -> None:
    run = rich_run(sim)
    state = run.observations[0]["states"][3][1]
    state["exp_avg"] = state["exp_avg"].astype(np.float64)
    with pytest.raises(SilentlyWrong, match=r"\(float64 of shape \(1,\)\) where .* \(float32 of shape \(1,\)\)"):
        values_equal(run, interpret(RICH), "All values are right.")


ZEROS, THREE = np.zeros((2, 2), np.float32), np.array([[0, 0], [3, 0]], np.float32)
THREE_OR_MORE = Inside(THREE.astype(np.float64), np.where(THREE, 4.0, 0.0), "float32")


@pytest.mark.parametrize(
    ("seen", "wanted", "words"),
    [
        (None, THREE, "a.grad[1,0] is None where it must be 3.0"),
        (THREE, None, "a.grad[1,0] is 3.0 where it must be None"),
        (None, ZEROS, "a.grad[0,0] is None where it must be 0.0"),
        (None, THREE_OR_MORE, "a.grad[1,0] is None where it must be in [3, 4]"),
    ],
)
def test_what_is_missing_is_told_at_an_element_that_is_not_zero(seen: Any, wanted: Any, words: str) -> None:
    run = Run(Scenario(1, (Parameter((2, 2)),), ()), (), trained=None)
    with pytest.raises(SilentlyWrong, match=re.escape(words)):
        compare(run, "The law.", "gradient", -1, 0, [seen], [wanted])


def test_a_norm_may_be_wider_than_the_gradients_and_a_step_count_any_number() -> None:
    """bfloat16 gradients 1, 3 and 7, 15, whose norm is 16.8523: rounded tensor by tensor 16.75, at the end 16.875."""
    program = (Backward(((0, 1),)), Finish(), Clip(1.0))
    scenario = Scenario(1, (Parameter((2,), "bfloat16"), Parameter((2,), "bfloat16")), program)
    expected = interpret(scenario)
    bfloat16 = FORMATS["bfloat16"].numpy
    right = [np.asarray(16.75, bfloat16), np.asarray(16.875, bfloat16), np.asarray(284**0.5, np.float32)]
    wrong = [np.asarray(16.5, bfloat16), np.asarray(17.0, np.float32), np.asarray(17.0, np.float16)]
    for norm in (*right, *wrong):
        seen = Seen(norms={2: norm}, gradients={2: []})
        ((_, told, wanted),) = (each for each in pairs(seen, expected, 2, 0) if each[0] == "norm")
        assert holds(told[0], wanted[0]) == any(norm is each for each in right)
    stepped = interpret(Scenario(1, (Parameter((1,)),), (Backward(((0,),)), Finish(), Step()), optimizer="Adam"))
    for count in (1, 2):
        seen = Seen(parameters={2: []}, states={2: [{"step": np.asarray(count)}]})
        ((_, told, wanted),) = (each for each in pairs(seen, stepped, 2, 0) if each[0] == "step")
        assert holds(told[0], wanted[0]) == (count == 1)


def test_of_what_a_rank_has_printed_that_died_warnings_are_no_cause() -> None:
    warning = "a.py:3: FutureWarning: all_gather_into_tensor is old\n  all_gather_into_tensor(a, b)\n"
    for details, told in ((f"{warning}free(): invalid pointer", " It printed: free(): invalid pointer"), (warning, "")):
        outcome = (RankReport(None, RankError("died", "its process was killed by SIGABRT", details)),)
        assert printed(Crashes("Dies.", Scenario(1, (Parameter((1,)),), ()), outcome)) == told
