"""P3: gradient accumulation."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from lockstep.oracle.events import Backward, CopyGradients, DropLoss, Event, Finish, Freeze, SaveAndLoad, ZeroGrad
from lockstep.oracle.fingerprint import contributions
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.expected import is_exact
from lockstep.properties.judging import judge, launches
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import all_of, having
from lockstep.properties.strategies.moments import altered
from lockstep.properties.strategies.several import after_two_forwards, with_several_backwards
from lockstep.properties.strategies.variants import one_by_one, with_one_unit, without_local
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import SENT, Trial

_BATCH = Backward(((0,), (0,)))
_WINDOW = (_BATCH, Finish())
COPIED = "a gradient was replaced"
SILENT = "what is sent inside no_sync was looked at, where nothing is claimed to be"
ACCUMULATED = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,)), False), *_WINDOW))
NESTED = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,)), False, nested=True), *_WINDOW))
TWICE = Scenario(2, (Parameter((1,)),), (*_WINDOW, ZeroGrad(), *_WINDOW))
_LATE = replace(_BATCH, meanwhile="drops gradients")
ZEROED_LATE = Scenario(2, (Parameter((1,)),), (*_WINDOW, _LATE, Finish()))
MEASURED = Scenario(2, (Parameter((1,)),), (replace(_BATCH, meanwhile="evaluates"), Finish()))
COPIED_ONCE = replace(TWICE, program=(*_WINDOW, CopyGradients(), ZeroGrad(), *_WINDOW))
COPIED_TWICE = replace(ACCUMULATED, program=(ACCUMULATED.program[0], CopyGradients(), *_WINDOW, CopyGradients()))
DROPPED = replace(TWICE, program=(*_WINDOW, ZeroGrad(), DropLoss(), *_WINDOW))


def accumulating(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with at least one micro-batch inside `no_sync`, or with one `no_sync` around several.

    If that is claimed, also scenarios in which the caller ends the synchronization inside `no_sync`.
    """
    kinds = ("accumulation", "together", *["end inside"] * claims.ends_in_no_sync)
    return st.one_of(*(exact_scenarios(claims, has=(kind,)) for kind in kinds))


def compared(scenario: Scenario, claims: Claims, *features: str) -> Scenario | None:
    """The scenario, if it has one of these features and if the scenario to compare it with stays within the claims."""
    return scenario if having(*features)(scenario) and not beyond(claims, without_local(scenario)) else None


@law(
    "P3",
    accumulating,
    needs=lambda claims: claims.accumulation,
    witnesses={SILENT: ACCUMULATED},
    made_of=lambda claims, scenario: compared(scenario, claims, "accumulation", "together"),
    share=0.4,
)
def test_no_sync_accumulates_and_then_counts_once(trial: Trial, scenario: Scenario) -> None:
    """Gradients accumulated under `no_sync` are part of the next mean, each micro-batch once. Nothing is sent before
    that.

    Why: averaging is linear, so it can wait. Sending early counts gradients twice, or costs the messages that `no_sync`
    saves.

    Broken by reducing only the last micro-batch, or by reducing the accumulated gradient again:
    PaddlePaddle/Paddle#29920, NVIDIA/Megatron-LM#7186, pytorch/pytorch#69031.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Accumulated micro-batches do not count once each.")
    nothing_is_sent(trial, scenario, "Something is sent inside no_sync.")


def nothing_is_sent(trial: Trial, scenario: Scenario, headline: str) -> None:
    """Check that micro-batches inside `no_sync` send nothing, if that is claimed.

    Skipped if the scenario without them exceeds the claims, or cannot show which collectives are needed anyway.
    """
    without = without_local(scenario)
    compared = followed(scenario) and not beyond(trial.claims, without)
    trial.witnessed[SILENT] += compared or not trial.claims.silent_no_sync
    if compared and trial.claims.silent_no_sync:
        launches.silent_inside_no_sync(trial.run(scenario), trial.run(without), headline)


def followed(scenario: Scenario) -> bool:
    """True if a synchronizing micro-batch follows each one inside `no_sync`, before the model is constructed again.

    Otherwise it may send data for the next forward, as DDP sends the order of its buckets. Without the micro-batch,
    there is no such forward.
    """
    batches = [scenario.batch(place) for place in (*scenario.places(SaveAndLoad), len(scenario.program))]
    return all(number == 0 or scenario.microbatches[number - 1].synchronize for number in batches)


@law(
    "P3",
    lambda claims: exact_scenarios(claims, has=("nested",)),
    needs=lambda claims: claims.accumulation,
    witnesses={SILENT: NESTED},
    made_of=lambda claims, scenario: compared(scenario, claims, "nested"),
    share=0.6,
)
def test_leaving_an_inner_no_sync_does_not_end_the_outer(trial: Trial, scenario: Scenario) -> None:
    """A micro-batch inside `no_sync` stays local, even if a nested `no_sync` was entered and left before its forward.

    Why: a function that uses `no_sync` cannot know if its caller already does.

    Broken by restoring True instead of the earlier value: huggingface/picotron's `no_sync`. No report of it is known.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "After a nested no_sync, micro-batches do not count once each.")
    nothing_is_sent(trial, scenario, "Something is sent inside no_sync, after a nested one has ended.")


def with_errors(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which the caller's own error ends a micro-batch, often together with micro-batches inside `no_sync`.

    For stage 3 also scenarios with a unit, in which parameters of unit and root are stepped and used after the error.
    """
    features = [("raise",), *[("raise", "accumulation")] * claims.accumulation]
    drawn = [exact_scenarios(claims, has=has) for has in features]
    if claims.stage == 3:
        has = ("raise, go on", "quadratic")
        # And so units are called alike on all ranks.
        all_used = exact_scenarios(replace(claims, unused=None), "same on all ranks", has)
        drawn += [all_used.filter(lambda scenario: len(one_by_one(scenario)) > 1).map(with_one_unit)] * 2
    return st.one_of(*drawn)


@law("P3", with_errors, needs=lambda claims: claims.survives_errors, shown_by=having("raise"), share=0.7)
def test_training_goes_on_rightly_after_an_error_that_the_caller_caught(trial: Trial, scenario: Scenario) -> None:
    """An error in `no_sync`, forward, backward or a hook, on one rank or all, has no effect on later steps once it is
    caught.

    Why: a batch that runs out of memory or contains NaN is skipped, and the next one must be right.

    Broken by a `no_sync` without try and finally: huggingface/picotron's. No report of it is known.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Training does not go on rightly after the caller's own error.")


@law(
    "P3",
    lambda claims: exact_scenarios(claims, has=("several steps", "zero grad")),
    shown_by=all_of("several steps", "zero grad"),
    share=0.1,
)
def test_zeroed_gradients_do_not_come_back(trial: Trial, scenario: Scenario) -> None:
    """Gradients that were set to None, or zeroed in place, no longer count. All others still do.

    Why: both are zero_grad, and the caller may choose either.

    Broken where a gradient aliases a buffer, or is a copy of one: NVIDIA/Megatron-LM#4609, pytorch/pytorch#43307.
    """
    judge.values_equal(
        *trial.run_and_expect(scenario), "Gradients do not start from what zero_grad has left.", about="gradient"
    )


@law(
    "P3",
    lambda claims: exact_scenarios(claims, has=("drop window",)),
    needs=lambda claims: claims.accumulation and claims.drops_windows,
    shown_by=having("drop window"),
    share=0.7,
)
def test_a_window_that_is_dropped_halfway_leaves_no_trace(trial: Trial, scenario: Scenario) -> None:
    """If the caller zeroes gradients after micro-batches inside `no_sync`, no later mean contains those micro-batches.

    Why: a training loop gives up a window in this way if one of its micro-batches is bad, for example contains NaN.

    Broken by accumulating elsewhere than in the gradients that the caller zeroes: torch's FSDP2, and FSDP1 on top of an
    average (docs/findings). No report of it is known.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "A window that was dropped halfway leaves a trace.")


@law(
    "P3",
    after_two_forwards,
    needs=lambda claims: claims.several_forwards,
    shown_by=lambda scenario: any(batch.forwards > 1 for batch in scenario.microbatches),
)
def test_two_forwards_before_one_backward_count_once_each(trial: Trial, scenario: Scenario) -> None:
    """If one backward follows two or three forwards, on the sum of their losses, the mean contains the gradients of
    all.

    Why: discriminators, pairs of views and penalties are trained in this way, and a gradient is a sum over all uses.

    Broken by counting forwards, or by preparing in each forward the state that one backward uses:
    pytorch/pytorch#58111, pytorch/pytorch#22095.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Two forwards before one backward do not count once each.")


@law(
    "P3",
    with_several_backwards,
    needs=lambda claims: claims.several_backwards,
    shown_by=lambda scenario: any(batch.backwards > 1 for batch in scenario.microbatches),
)
def test_each_of_several_backwards_counts(trial: Trial, scenario: Scenario) -> None:
    """If a micro-batch runs backward several times, through one forward or through several, each backward adds its
    gradients.

    Why: losses that are weighted or inspected one by one are trained in this way, and a gradient is the sum over all
    backwards.

    Broken by taking the first backward for the last: only it is synchronized, or the data of the next is freed:
    pytorch/pytorch#47260, pytorch/pytorch#136861, facebookresearch/fairscale#918.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Of several backwards not each counts.")


def zeroed_late(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which a ZeroGrad right before a micro-batch moves between its forwards and its backwards.

    They have any features. All such ZeroGrads move, or only the last one.
    """
    stays = replace(claims, joins=())
    drawn = with_any(stays, 1, has=("several steps",)) | with_any(stays, 2)
    made = st.builds(with_late_zeros, drawn, st.booleans())
    return made.filter(lambda scenario: any(batch.zeroes for batch in scenario.microbatches))


def with_late_zeros(scenario: Scenario, last: bool) -> Scenario:
    """The scenario with such ZeroGrads moved, or only the ``last`` one."""
    pairs = enumerate(pairwise(scenario.program))
    places = [
        place
        for place, (one, then) in pairs
        if isinstance(one, ZeroGrad)
        and isinstance(then, Backward)
        and not then.meanwhile
        and not scenario.standings[place].leftover
    ]
    chosen, program = places[-1:] if last else places, list(scenario.program)
    for place in chosen[::-1]:
        zero, batch = program[place : place + 2]
        kind = "drops gradients" if zero == ZeroGrad() else "zeroes gradients"
        program[place : place + 2] = [replace(batch, meanwhile=kind)]  # type: ignore[call-arg]  # it is a Backward
    return replace(scenario, program=tuple(program))


@law(
    "P3",
    zeroed_late,
    needs=lambda claims: claims.zeroes_late,
    witnesses={SENT: ZEROED_LATE},
    shown_by=having("zero late"),
)
def test_gradients_may_be_zeroed_between_forward_and_backward(trial: Trial, scenario: Scenario) -> None:
    """If the caller zeroes gradients between a forward and its backward, the mean is the same as if they were zeroed
    before.

    Why: the loop `loss = ...; optimizer.zero_grad(); loss.backward()` is as common as the other order.

    Broken by state that forward prepares in the gradients, or notes about them: pytorch/pytorch#96439,
    facebookresearch/fairscale#354.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Gradients cannot be zeroed between forward and backward.")


def measuring(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any features, in which a loss is measured during one micro-batch or during all of them."""
    stays = replace(claims.without_broadcasts(), joins=())
    drawn = with_any(stays, 1, has=("several steps",)) | with_any(stays, 2)
    each = drawn.flatmap(lambda scenario: st.sampled_from(measured(scenario)))
    return each.filter(lambda scenario: any(batch.evaluates for batch in scenario.microbatches))


def measured(scenario: Scenario) -> list[Scenario]:
    """The scenario with an evaluation during one micro-batch that has no other such event, and during all of these."""
    places = [place for place, batch in scenario.events(Backward) if not batch.meanwhile]
    return [altered(scenario, each, meanwhile="evaluates") for each in (*((one,) for one in places), places)]


@law(
    "P3",
    measuring,
    needs=lambda claims: claims.evaluates and claims.measures_late,
    witnesses={SENT: MEASURED},
    shown_by=having("measure"),
)
def test_a_loss_may_be_measured_between_a_forward_and_its_backward(trial: Trial, scenario: Scenario) -> None:
    """A forward without autograd, between a forward and its backward, changes nothing of that backward.

    Why: a target, teacher or reference is often the same model, run without autograd before the loss is known.

    Broken by a forward that undoes the preparations of the one before. No report of it is known.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "A loss that is measured before a backward leaves a trace.")


def with_copies(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any features, often with accumulation, in which gradients are copied."""
    accumulated = ("accumulation",) if claims.accumulation else ()
    claims = replace(claims, joins=())
    return with_any(claims, 2, has=("copy gradients",)) | with_any(claims, 1, has=("copy gradients", *accumulated))


@law(
    "P3",
    with_copies,
    needs=lambda claims: claims.replaced_gradients,
    witnesses={SENT: COPIED_ONCE, COPIED: COPIED_TWICE},  # some programs have gradients in only one of the two places
    shown_by=having("copy gradients"),
)
def test_a_gradient_that_the_caller_replaces_counts_as_its_copy_does(trial: Trial, scenario: Scenario) -> None:
    """If the caller replaces `.grad` by a copy of it, everything after that is the same as if it had not.

    Why: ``.grad`` is an attribute that a caller may assign. Code that projects or mixes gradients does.

    Broken by going on with the tensor of before, such as a part of a bucket. No report of it is known.
    """
    run = trial.run(scenario)
    trial.witnessed[COPIED] += any(seen["copied"] for seen in run.observations)
    judge.values_equal(run, trial.expected(scenario), "A gradient that the caller has replaced does not count.")


def dropping(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any features, in which a loss is dropped."""
    steady = replace(claims.without_broadcasts(), joins=())
    return with_any(steady, 2, has=("drop loss",)) | with_any(steady, 1, has=("drop loss", "several steps"))


@law(
    "P3",
    dropping,
    needs=lambda claims: claims.drops_losses,
    witnesses={SENT: DROPPED},
    shown_by=having("drop loss"),
    share=0.7,
)
def test_a_forward_whose_loss_is_dropped_leaves_no_trace(trial: Trial, scenario: Scenario) -> None:
    """A forward in training mode without a backward, on all ranks, changes nothing of the steps after it.

    Why: a training loop skips a batch whose loss is NaN, or only measures a loss.

    Broken by taking a forward for the beginning of a backward: open-mmlab/mmdetection#2153, pytorch/pytorch#84175.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "A forward whose loss was dropped leaves a trace.")


def as_one_big_batch(claims: Claims) -> st.SearchStrategy[tuple[Scenario, Scenario]]:
    """Windows of two micro-batches, one of them inside `no_sync`, and the same samples in a single micro-batch each."""
    drawn = exact_scenarios(claims, enclosed=False)
    thawed = drawn.filter(lambda scenario: not scenario.has(Freeze))
    pairs = thawed.map(split_and_whole).filter(same_samples)
    pairs = pairs.filter(lambda pair: not any(beyond(claims, scenario) for scenario in pair))
    return pairs.filter(lambda pair: all(is_exact(scenario, claims) for scenario in pair))


def split_and_whole(scenario: Scenario) -> tuple[Scenario, Scenario]:
    """The pair.

    The samples of each synchronization occur twice. The second time, ranks use them in the opposite order.
    """
    split: list[Event] = []
    whole: list[Event] = []
    for event in scenario.program:
        if isinstance(event, Backward) and event.zeroes is not None:
            split.append(event.zeroes)
            whole.append(event.zeroes)
        match event:
            case Backward(synchronize=True):
                back = event.orders[::-1]
                split += [Backward(event.orders, False), Backward(back), Finish()]
                whole += [Backward(event.orders + back), Finish()]
            case ZeroGrad():
                split.append(event)
                whole.append(event)
    kept = (scenario.world_size, scenario.parameters, tuple(split))
    as_it_is = ("probe", "bucket_cap", "units", "outside", "replicas", "outsiders", "signs", "mode", "wire")
    one = Scenario(*kept, **{name: getattr(scenario, name) for name in as_it_is})
    return one, replace(one, program=tuple(whole))


def same_samples(pair: tuple[Scenario, Scenario]) -> bool:
    """True if both have the same numbers. With many synchronizations and no ZeroGrad, other numbers are chosen."""
    tables = [np.concatenate([np.concatenate(c, axis=1) for c in contributions(scenario)]) for scenario in pair]
    return np.array_equal(tables[0], tables[1])


@law("P3", as_one_big_batch, needs=lambda claims: claims.accumulation)
def test_micro_batches_count_as_one_big_batch(trial: Trial, pair: tuple[Scenario, Scenario]) -> None:
    """Two micro-batches give twice the gradients of one micro-batch with the samples of both, whichever rank has which
    sample.

    Why: a gradient is a sum over samples. Dividing by the number of micro-batches is the caller's task. This law needs
    no oracle.

    Broken by averaging over micro-batches as well, or only on one rank: KellerJordan/modded-nanogpt#146,
    huggingface/transformers#34191. Broken by using only the last micro-batch: ServiceNow/Fast-LLM#550.
    """
    split, whole = (trial.run(scenario) for scenario in pair)
    places = [each.places(Finish) for each in pair]
    judge.gradients_equal(split, whole, dict(zip(*places, strict=True)), 2.0, "Micro-batches are not one big batch.")
