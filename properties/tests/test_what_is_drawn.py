"""How much of what is drawn is of use, that what is asked for is drawn, and what is not claimed is not."""

import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.events import (
    Backward,
    Clip,
    CopyGradients,
    DropLoss,
    EndJoin,
    Evaluate,
    Finish,
    Freeze,
    Join,
    Move,
    Raise,
    Replace,
    SaveAndLoad,
    Step,
    SwapWeights,
    Write,
    ZeroGrad,
)
from lockstep.oracle.interpreter import interpret, is_exact
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.model import Group, Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import BACKWARDS, BUFFERS, COLLECTIVES, Claims
from lockstep.properties.events.backward import READ, TAKEN, on_averages
from lockstep.properties.events.step import reads_after_steps, reads_stepped_gradients
from lockstep.properties.expected import known
from lockstep.properties.implementations import look_up
from lockstep.properties.models.draws import DENSE
from lockstep.properties.strategies import __main__ as table
from lockstep.properties.strategies import exact_scenarios, scenarios
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.independent import sample
from lockstep.properties.strategies.scenarios import adds_up_rounded_means
from lockstep.properties.strategies.several import after_two_forwards, with_several_backwards
from lockstep.properties.strategies.traits import TRAITS, buckets
from lockstep.properties.strategies.variants import is_alike_on_one_rank, on_one_rank, without_local
from lockstep.properties.strategies.within import beyond
from lockstep.properties.test_accumulation import measuring, split_and_whole
from lockstep.properties.test_binding import going_around, moving
from lockstep.properties.test_steps import with_swaps
from lockstep.properties.tests.of_scenarios import ALL, PLAIN, Holds, drawn, has
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import World


@pytest.mark.parametrize("averaging", AVERAGINGS)
def test_of_at_least_80_percent_of_what_is_drawn_the_oracle_knows_what_must_come_out(averaging: str) -> None:
    def is_known(scenario: Scenario) -> bool:
        try:
            interpret(scenario, averaging, "untouched")
        except Inexact:
            return False
        return True

    known = [is_known(scenario) for scenario in sample(scenarios(replace(ALL, averaging=averaging)), 200)]
    assert sum(known) * 5 >= len(known) * 4


def test_world_sizes_that_find_more_are_drawn_more() -> None:
    sizes = Counter(scenario.world_size for scenario in sample(scenarios(ALL), 1000))
    assert min(sizes[size] for size in (1, 3, 5, 6, 7)) > max(sizes[size] for size in (4, 8)) > 0


def program_of(drawn: Any) -> Scenario:
    """What a law draws, without what else it does."""
    scenario: Scenario = drawn[0] if isinstance(drawn, tuple) else drawn
    return scenario


@pytest.mark.parametrize("draws", [measuring, with_swaps], ids=lambda draws: draws.__name__)
def test_who_broadcasts_buffers_before_forwards_is_drawn_none_where_it_is_open_when(draws: Any) -> None:
    """Whoever broadcasts them once has them there."""
    once, each = (sample(draws(replace(ALL, buffers=claimed)), 80) for claimed in BUFFERS)
    assert any(scenario.buffers for scenario in map(program_of, once))
    assert not any(scenario.buffers for scenario in map(program_of, each))


# What no program has both of: one optimizer, one way to part the world, a loss scale for every step, masters that hear
# of every change, what ranks that are gone would keep or see, hooks on what comes later, an optimizer of one group, and
# masters of what ranks have in common.
JOINS = ("joins", "joins twice", "others stay", "step without rank 0")
GONE_IN_A_JOIN = ("momentum", "adam", "masters", "buffers", "loss scale", "overflow", "clipped overflow")
HOOKS = ("hooks", "hooks on modules", "kept gradients")  # on what is there when the model is wrapped
NEVER_MEET = {
    frozenset(("momentum", "adam")),
    frozenset(("replicas", "outsiders")),
    *(
        frozenset((steps, kind))
        for steps in ("idle step", "several optimizers")
        for kind in ("loss scale", "overflow", "clipped overflow")
    ),
    *(frozenset((written, "masters")) for written in ("write", "write between steps")),
    *(frozenset(("quadratic", kind)) for kind in ("overflow", "clipped overflow")),
    *(frozenset((kept, join)) for kept in (*GONE_IN_A_JOIN, *HOOKS, "seeded", "asked wrapper") for join in JOINS),
    *(frozenset((kind, "replace")) for kind in HOOKS),
    *(frozenset(("hooks on modules", loss)) for loss in ("read parameters", "take gradients")),
    *(frozenset(("asked wrapper", kind)) for kind in ("groups", "three groups", "several optimizers", "masters")),
    frozenset(("early optimizer", "masters")),
}


def met(drawn: Iterable[Scenario]) -> set[frozenset[str]]:
    """Which two features some scenario has both of."""
    there = ([name for name, feature in FEATURES.items() if feature.occurs(scenario)] for scenario in drawn)
    return {frozenset(pair) for names in there for pair in combinations(names, 2)}


def test_any_two_features_meet_but_those_that_cannot() -> None:
    """By chance, or, of those that a few hundred scenarios do not bring together, where both are asked for."""
    apart = {frozenset(pair) for pair in combinations(FEATURES, 2)}
    for part in range(3):
        apart -= met(sample(with_any(ALL, 4), 100, seed_value=part))
    assert apart >= NEVER_MEET
    for pair in sorted(map(sorted, apart - NEVER_MEET)):
        (both,) = sample(exact_scenarios(ALL, has=tuple(name for name in FEATURES if name in pair)), 1)
        assert frozenset(pair) in met([both])


def unclaimed(name: str) -> Claims:
    """Everything claimed but that, or, of those with a name, what is then none."""
    changed: dict[str, Any] = {name: None if name in ("unused", "buffers") else False}
    return replace(ALL, **changed)


FORBIDDEN: dict[str, tuple[Claims, Holds]] = {
    "different orders": (
        replace(unclaimed("hook_order"), unused=None),
        lambda s: any(len(set(b.orders)) > 1 for b in s.microbatches),
    ),
    "no_sync": (
        unclaimed("accumulation"),
        lambda s: (
            not all(b.synchronize for b in s.microbatches)
            or any(isinstance(e, Raise) and not e.synchronize for e in s.program)
        ),
    ),
    "windows that are dropped": (unclaimed("drops_windows"), FEATURES["drop window"].occurs),
    "zeros after a forward": (unclaimed("zeroes_late"), lambda s: any(b.zeroes for b in s.microbatches)),
    "evaluations after a forward": (unclaimed("measures_late"), lambda s: any(b.evaluates for b in s.microbatches)),
    "forwards around the wrapper": (unclaimed("direct_forwards"), lambda s: any(b.direct for b in s.microbatches)),
    "losses that read": (unclaimed("losses_read"), lambda s: any(b.loss in READ for b in s.microbatches)),
    "losses of gradients": (unclaimed("double_backward"), lambda s: any(b.loss in TAKEN for b in s.microbatches)),
    "metrics": (unclaimed("callers_collectives"), lambda s: any(b.metric for b in s.microbatches)),
    "ends inside no_sync": (unclaimed("ends_in_no_sync"), lambda s: any(b.ends for b in s.microbatches)),
    "what does not fit the wire": (replace(ALL, wire_dtype="bfloat16"), lambda s: s.wire != "bfloat16"),
    "sums of averages": (unclaimed("adds_to_averages"), on_averages),
    "steps without a gradient": (unclaimed("idle_steps"), FEATURES["idle step"].occurs),
    "several optimizers": (unclaimed("several_optimizers"), lambda s: len(s.optimizers) > 1),
    "what the caller writes into parameters": (unclaimed("writes_weights"), has(Write)),
    "models that move": (unclaimed("moved_parameters"), has(Move)),
    "gradients that the caller replaces": (unclaimed("replaced_gradients"), has(CopyGradients)),
    "losses that are dropped": (unclaimed("drops_losses"), has(DropLoss)),
    "losses that are dropped inside no_sync": (unclaimed("accumulation"), has(DropLoss, synchronize=False)),
    "weights that are swapped": (unclaimed("swaps_weights"), has(SwapWeights)),
    "evaluations with other weights": (unclaimed("evaluates"), has(SwapWeights)),
    "stepped gradients": (unclaimed("outlive_steps"), lambda s: reads_after_steps(s, lambda _: True)),
    "float64": (unclaimed("float64"), lambda s: any(p.dtype == "float64" for p in s.parameters)),
    "a cap": (unclaimed("bucket_cap"), lambda s: s.bucket_cap is not None),
    "several dtypes": (unclaimed("several_dtypes"), lambda s: len({p.dtype for p in s.parameters}) > 1),
    "inference mode": (unclaimed("inference_mode"), FEATURES["infer"].occurs),
    "training in evaluation mode": (unclaimed("eval_mode"), FEATURES["eval mode"].occurs),
    "absent parameters": (replace(unclaimed("unused"), freezing=False), FEATURES["unused"].occurs),
    "ranks that use no parameter": (unclaimed("idle_ranks"), FEATURES["idle rank"].occurs),
    "errors": (unclaimed("survives_errors"), has(Raise)),
    "freezing": (unclaimed("freezing"), has(Freeze)),
    "ties": (unclaimed("tied_parameters"), lambda s: any(p.tied is not None for p in s.parameters)),
    "parameters read outside their module": (unclaimed("outside_reads"), lambda s: bool(s.outside)),
    "ranks that run out, where no law asks for them": (ALL, has(Join)),
    "buffers": (unclaimed("buffers"), lambda s: bool(s.buffers)),
    "16 bits": (unclaimed("sixteen_bits"), lambda s: s.masters or FEATURES["16 bits"].occurs(s)),
    "layouts": (unclaimed("strided_parameters"), lambda s: any(p.layout != "contiguous" for p in s.parameters)),
    "no elements": (unclaimed("empty_parameters"), lambda s: any(p.count == 0 for p in s.parameters)),
    "replaced parameters": (unclaimed("replaced_parameters"), has(Replace)),
    "replicas": (unclaimed("replicas"), lambda s: s.replicas > 1),
    "ranks that take no part": (unclaimed("subgroups"), lambda s: s.outsiders > 0),
    "many ranks": (replace(ALL, most_ranks=3), lambda s: s.world_size + s.outsiders > 3),
    "anything but a forward before ranks are equal": (
        replace(ALL, equal_from="first forward"),
        lambda s: not isinstance(s.program[0], Backward | DropLoss | Evaluate),
    ),
    "buffers that are saved before ranks are equal again": (
        replace(ALL, equal_from="first forward"),
        lambda s: bool(s.buffers) and SaveAndLoad in map(type, s.program),
    ),
    "an optimizer that is made early": (
        replace(ALL, stage=1, optimizer_before=False),
        lambda s: s.caller.makes_optimizer,
    ),
    "an optimizer that is made before wrapping": (
        unclaimed("optimizer_before"),
        lambda s: s.caller.makes_optimizer == "before",
    ),
    "a wrapper that stands for the model": (unclaimed("stands_for_model"), lambda s: s.caller.asks_the_wrapper),
    "masters of a sharded optimizer": (replace(ALL, stage=1), lambda s: s.masters),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_is_not_claimed_is_not_drawn(what: str) -> None:
    claims, holds = FORBIDDEN[what]
    assert not any(map(holds, drawn(claims, 100)))


@pytest.mark.parametrize("name", [name for name, feature in FEATURES.items() if feature.claimed(ALL)])
def test_what_is_asked_for_is_in_every_scenario(name: str) -> None:
    found = list(drawn(ALL, 20, has=(name,)))
    assert all(map(FEATURES[name].occurs, found))
    assert len(found) == 20


def test_features_that_do_not_exist_or_are_not_claimed_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="there is no feature 'sorcery' to draw; there are accumulation, nested"):
        exact_scenarios(ALL, has=("sorcery",))
    with pytest.raises(ValueError, match="'raise' cannot be drawn: it is not claimed"):
        exact_scenarios(PLAIN, has=("raise",))
    with pytest.raises(ValueError, match="'adam' cannot be drawn where every bit is to be known"):
        exact_scenarios(ALL, has=("adam",), enclosed=False)


def test_where_every_bit_is_to_be_known_the_oracle_knows_it() -> None:
    found = sample(exact_scenarios(ALL, enclosed=False), 100)
    assert all(interpret(scenario, unused="untouched").exact for scenario in found)


def test_averages_that_the_end_of_a_join_has_dropped_are_not_added_to() -> None:
    """What follows may round: nothing of before is in it, so that all ways of adding up come to the same."""
    window = (Backward(((0,), (0,))), Finish())
    step = Hyperparameters(learning_rate=0.1)  # after which gradients of the quadratic probe are intervals
    apart = Scenario(
        2, (Parameter((1,)),), (Join(), *window, Step(), EndJoin(), *window), probe="quadratic", hyperparameters=step
    )
    assert on_averages(apart) == []
    assert not adds_up_rounded_means(apart, interpret(apart))
    on_top = replace(apart, program=(*window, Step(), *window))
    assert on_averages(on_top) == [3]
    assert adds_up_rounded_means(on_top, interpret(on_top))


def test_a_class_may_divide_before_the_sum_or_after_it_unless_it_says_how() -> None:
    """A gradient clipped to 1 is divided by 5 ranks: 5 times the fifth is not 1 in floats, a fifth of 5 is."""
    window = (Backward(((0,),) * 5), Finish())
    scenario = Scenario(
        5, (Parameter((1,)),), (*window, Clip(1.0), ZeroGrad(), *window, Clip(1.0), *window), signs="mixed"
    )
    assert known(scenario, Claims()) is None
    told = known(scenario, Claims(averaging="sum then divide"))
    assert told is not None
    assert told.gradients[8] == (np.array([-3134.0], np.float32),)
    assert known(replace(scenario, program=window), Claims()) is not None


def test_no_gradients_count_on_after_a_step_that_may_have_changed_them() -> None:
    """Nothing of the kind is drawn; what is made smaller might be, and would blame whoever steps by torch's foreach."""
    assert not any(map(reads_stepped_gradients, drawn(ALL, 150, has=("momentum", "several steps"))))
    window, ahead = (Backward(((0,), (0,))), Finish(), Step()), Hyperparameters(momentum=0.5, nesterov=True)
    twice = Scenario(2, (Parameter((1,)),), window * 2, hyperparameters=ahead)
    assert reads_stepped_gradients(twice)
    assert not reads_stepped_gradients(replace(twice, program=(*window, ZeroGrad(), *window)))
    assert not reads_stepped_gradients(replace(twice, hyperparameters=Hyperparameters(momentum=0.5)))
    both = replace(twice, parameters=twice.parameters * 2, groups=(Group((1,)),))
    one_by_one = (Backward(((0, 1), (0, 1))), Finish(), Step((1,)), Step((0,)), ZeroGrad(), *window)
    assert not reads_stepped_gradients(replace(both, program=one_by_one))
    assert reads_stepped_gradients(replace(both, program=(*one_by_one[:4], Step((1,)))))


def test_the_table_of_what_is_drawn_has_a_row_for_everything_and_counts_each_thing_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["strategies", "--examples", "100"])
    table.main()
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN  # else the next write to a closed pipe ends all tests
    shown: dict[str, dict[str, float]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("Of 100 "):
            rows = shown.setdefault(line.removeprefix("Of 100 "), {})
        else:
            name, percent = line.removesuffix(" %").rsplit(maxsplit=1)
            rows[name.strip()] = float(percent)
    programs, runs, calls = shown["programs"], shown["real models"], shown["calls of a collective"]
    assert set(FEATURES) | set(TRAITS) <= set(programs)
    assert programs["world size 2"] > programs["world size 4"] > 0
    ranks = {rows: sum(shown[rows][name] for name in shown[rows] if name.startswith("world size")) for rows in shown}
    assert set(ranks.values()) == {100}
    assert sum(programs[name] for name in ("no step", "1 step", "2 steps", "3 steps or more")) == 100
    assert sum(programs[name] for name in programs if "bucket" in name and "ragged" not in name) <= programs["cap"]
    assert sum(runs[model] for model in DENSE) == 100
    assert sum(calls[operation] for operation in COLLECTIVES) == 100
    assert min(runs.values()) > 0 < min(calls.values())


def test_buckets_are_filled_from_the_last_tensor_to_the_first() -> None:
    one, two, frozen = Parameter((1,)), Parameter((2,)), Parameter((2,), trainable=False)
    both = (Backward(((0, 1, 2), (2, 0, 1))), Finish())
    uncapped = Scenario(2, (one, two, two, frozen), both)
    assert buckets(uncapped) == [20]
    ragged = replace(uncapped, bucket_cap=8)
    assert buckets(ragged) == [8, 8, 4]
    assert buckets(replace(ragged, bucket_cap=7)) == [8, 8, 4]
    assert buckets(replace(ragged, bucket_cap=12)) == [8, 12]
    assert buckets(replace(ragged, parameters=(one, two, Parameter((1,), "float64")))) == [8, 8, 4]
    assert buckets(replace(ragged, parameters=(one, two, Parameter((2,), tied=1)))) == [8, 4]
    told = {name for name, holds in TRAITS.items() if holds(ragged)}
    many = ("cap, 3 buckets or more", "cap, the last bucket ragged")
    sizes = ("cap as large as a parameter", "cap 1 element larger")  # than the second, and than the first
    assert told == {*many, *sizes, "no step", "hook orders differ"}
    assert TRAITS["cap 1 element smaller"](replace(ragged, bucket_cap=4))
    assert not TRAITS["cap, the last bucket ragged"](uncapped)
    nothing = Scenario(2, (Parameter((0,)),), (Backward(((0,), (0,))), Finish()), bucket_cap=4)
    assert buckets(nothing) == []
    assert not {name for name, holds in TRAITS.items() if "bucket" in name and holds(nothing)}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_is_not_claimed_is_seen_before_it_runs(what: str) -> None:
    claims, holds = FORBIDDEN[what]
    for scenario in drawn(ALL, 150):
        assert not beyond(ALL, scenario)
        if holds(scenario) and (what != "different orders" or FEATURES["unused"].occurs(scenario)):
            assert beyond(claims, scenario), repr(scenario)


def test_several_forwards_before_a_backward_are_drawn_where_they_are_claimed_and_the_law_asks_for_them() -> None:
    claims = replace(ALL, buffers="each")
    found = sample(after_two_forwards(claims), 100)
    counts = [[batch.forwards for batch in scenario.microbatches] for scenario in found]
    assert {max(each) for each in counts} == {2, 3}
    assert any(min(each) == 1 for each in counts)  # one micro-batch, and not another
    assert any(batch.forwards == 2 and not batch.synchronize for scenario in found for batch in scenario.microbatches)
    assert any(scenario.broadcast_buffers for scenario in found)
    assert {beyond(claims, scenario) for scenario in found} == {""}
    less = replace(claims, several_forwards=False)
    assert {beyond(less, scenario) for scenario in found} == {"several forwards before a backward"}


@pytest.mark.parametrize("where", BACKWARDS)
def test_several_backwards_are_drawn_where_they_are_claimed_and_the_law_asks_for_them(where: str) -> None:
    claims = replace(ALL, backwards=where)
    found = sample(with_several_backwards(claims), 100)
    several = [batch for scenario in found for batch in scenario.microbatches if batch.backwards > 1]
    assert {(batch.forwards, batch.backwards) for batch in several} == {(1, 2), (1, 3), (2, 2), (3, 3)}
    assert any(batch.synchronize for batch in several) == (where == "anywhere")
    assert any(not batch.synchronize for batch in several)
    assert {beyond(claims, scenario) for scenario in found} == {""}
    assert {beyond(replace(claims, backwards=None), scenario) for scenario in found} == {"several backwards"}
    elsewhere = {beyond(replace(claims, backwards="in no_sync"), scenario) for scenario in found}
    assert elsewhere == {"", *["several backwards that synchronize"] * (where == "anywhere")}
    without = sample(with_several_backwards(replace(claims, several_forwards=False)), 50)
    assert {batch.forwards for scenario in without for batch in scenario.microbatches} == {1}


def test_some_forwards_or_all_go_around_the_wrapper_and_none_inside_no_sync() -> None:
    found = sample(going_around(ALL), 100)
    shares = []
    for scenario in found:
        direct = [batch for batch in scenario.microbatches if batch.direct]
        assert all(batch.synchronize for batch in direct)
        shares.append(len(direct) / len(scenario.microbatches))
    assert min(shares) > 0
    assert any(share < 1 for share in shares)
    assert any(share == 1 and len(each.microbatches) > 1 for share, each in zip(shares, found, strict=True))
    assert {all(batch.synchronize for batch in scenario.microbatches) for scenario in found} == {True, False}


def test_a_model_moves_before_everything_and_after_a_step_with_gradients_and_without() -> None:
    """Those that are there move too; and there are synchronizations after that."""
    moved = [(scenario, place) for scenario in sample(moving(ALL), 100) for place in scenario.places(Move)]
    later = [(scenario, place) for scenario, place in moved if Step in map(type, scenario.program[:place])]
    assert {scenario.standings[place].gradients for scenario, place in later} == {True, False}
    assert all(Finish in map(type, scenario.program[place:]) for scenario, place in moved)
    assert any(place == 0 for _, place in moved)


def test_what_a_law_makes_of_a_scenario_may_go_beyond_what_is_claimed() -> None:
    """Samples that come together on a rank, or micro-batches in one, put other orders together."""
    units = ((0, 1), (2, 3))
    apart = Scenario(3, (Parameter((1,)),) * 4, (Backward(((0, 2), (1, 3), (0, 2))), Finish()), units=units)
    split, whole = split_and_whole(apart)
    assert not any(beyond(Claims(stage=3, unused="untouched", accumulation=True), each) for each in (apart, split))
    assert beyond(Claims(stage=3, unused="untouched", accumulation=True), whole).startswith("units that not all ranks")
    local = (Backward(((1,), (1,), (0, 1)), False), Backward(((0, 1), (1,), (1,))), Finish())
    held = Scenario(3, (Parameter((1,)),) * 2, local)
    in_order = Claims(hook_order=False, unused="zero", accumulation=True)
    assert not beyond(in_order, held)
    assert beyond(in_order, without_local(held)) == "different hook orders"


def test_a_whole_batch_that_cancels_is_not_compared_with_ranks_whose_samples_do_not(sim: World) -> None:
    """Their gradients add up to 0, and that of the whole batch is -0.0, on code that is right."""
    few = tuple((0, 1) if rank in (0, 4, 6, 7) else (1,) for rank in range(8))
    program = (Backward(((0, 1),) * 8), Finish(), Step(), ZeroGrad(), Backward(few), Finish())
    model = (Parameter((4,), "float64"), Parameter((1,), "float64"))
    cancels = Scenario(8, model, program, probe="quadratic", signs="mixed")
    assert is_exact(cancels)
    assert not is_alike_on_one_rank(cancels, ALL)
    assert is_alike_on_one_rank(replace(cancels, signs="negative"), ALL)
    (implementation,) = look_up(["lockstep.impls.static_buckets:StaticBuckets"], sim)
    whole = Trial(implementation, sim).run(on_one_rank(cancels)).observations[0]["gradients"][5][0]
    assert (np.signbit(whole) & (whole == 0)).any()


def test_a_law_that_asks_for_what_is_not_claimed_is_at_fault_itself(sim: World) -> None:
    (implementation,) = look_up(["lockstep.impls.main_grad_buckets:MainGradBuckets"], sim)
    asked = Trial(implementation, sim)
    both = ((0, 1), (0, 1))
    program = (Freeze((1,), frozen=False), Backward(both), Finish())
    frozen = Scenario(2, (Parameter((1,)), Parameter((1,), trainable=False)), program)
    words = "asks lockstep.impls.main_grad_buckets:MainGradBuckets for what it does not claim, training what was frozen"
    with pytest.raises(RuntimeError, match=words):
        asked.run(frozen)
    saved = replace(frozen, parameters=(Parameter((1,)),) * 2, program=(Freeze((1,)), SaveAndLoad(), *frozen.program))
    with pytest.raises(RuntimeError, match=words):
        asked.run(saved)
