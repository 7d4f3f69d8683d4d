"""P13: no precision is lost without need, and an overflow counts on all ranks."""

from dataclasses import replace
from itertools import takewhile

from hypothesis import strategies as st

from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.events import (
    Backward,
    Clip,
    Event,
    Finish,
    Load,
    SaveAndLoad,
    Step,
    Unscale,
    ZeroGrad,
)
from lockstep.oracle.events.backward import OVERFLOWS
from lockstep.oracle.model import LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import CANCELLING
from lockstep.properties.claims import Claims
from lockstep.properties.expected import known
from lockstep.properties.judging import judge
from lockstep.properties.judging.wire import as_claimed, due, in_training, on_the_wire, wide_enough
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios, those_there_are
from lockstep.properties.strategies.features import all_of, anything, having
from lockstep.properties.strategies.moments import altered
from lockstep.properties.trial import Trial

_WINDOW = (Backward(((0,), (0,))), Finish())
IN_ANOTHER = "a gradient traveled in another dtype than its own"
SENDS = Scenario(2, (Parameter((1,)),), _WINDOW)
IN_SIXTEEN = Scenario(2, (Parameter((1,), "bfloat16"),), _WINDOW)
SUM_OVERFLOWS = Scenario(2, (Parameter((1,), "float16"),), _WINDOW, loss_scale=LossScale(2.0**14))
SKIPPED = Scenario(
    2,
    (Parameter((1,)),),
    (Backward(((0,), (0,)), overflow=(1,)), Finish(), Step(), ZeroGrad(), *_WINDOW, Step()),
    loss_scale=LossScale(8.0),
)
CLIPPED = replace(
    SKIPPED,
    program=(
        Backward(((0,), (0,)), overflow=(1,)),
        Finish(),
        Unscale(),
        Clip(1.0),
        Step(),
        ZeroGrad(),
        *_WINDOW,
        Step(),
    ),
)
UNSCALED = Scenario(2, (Parameter((1,)),), (*_WINDOW, Unscale(), Clip(1.0)), loss_scale=LossScale(8.0))


def unscaled_and_clipped(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios that unscale before they clip."""

    def unscaled_first(scenario: Scenario) -> Scenario | None:
        program: list[Event] = []
        unscaled = False
        for event in scenario.program:
            kind = type(event)
            if not unscaled and kind is Clip:
                program.append(Unscale())
                unscaled = True
            if not (unscaled and kind is Unscale):
                program.append(event)
            unscaled = kind is Unscale or (unscaled and kind not in (Step, SaveAndLoad, Load))
        other = replace(scenario, program=tuple(program))
        return other if known(other, claims) else None

    return those_there_are(exact_scenarios(claims, has=("loss scale", "clip")).map(unscaled_first))


def stepped_after_an_overflow(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which a step follows an overflow, directly or after unscaling and clipping.

    The overflow may be inside `no_sync`, followed by a micro-batch without one. If 16 bits are claimed, the gradients
    may also nearly overflow, so that nothing is skipped.
    """

    def stepped(drawn: tuple[Scenario, bool]) -> Scenario | None:
        scenario, earlier = drawn
        program: list[Event] = []
        over = {place: batch for place, batch in scenario.events(Backward) if batch.overflow}
        for place, event in enumerate(scenario.program):
            if earlier and place in over:
                program += [replace(over[place], synchronize=False), replace(over[place], overflow=())]
                continue
            program.append(event)
            then = scenario.program[place + 1 :]
            following = (type(each) for each in then if type(each) not in (Unscale, Clip))
            if place - 1 in over and event.finishes and next(following, None) is not Step:
                count_on = any(each.reads_gradients for each in takewhile(lambda each: not each.ends_gradients, then))
                if claims.outlive_steps:
                    program.append(Step())
                elif count_on:
                    return None
                else:
                    program += [Step(), ZeroGrad()]
        other = replace(scenario, program=tuple(program))
        return other if known(other, claims) else None

    earlier = st.booleans() if claims.accumulation else st.just(False)
    features = [("overflow",), ("clipped overflow",), *[("overflow", "16 bits")] * claims.sixteen_bits]
    # If the rank uses only float32 parameters, only these overflow.
    features += [("overflow", "16 bits", "unused")] * (claims.sixteen_bits and claims.unused is not None)
    scenarios = st.tuples(st.one_of(*(exact_scenarios(claims, has=has) for has in features)), earlier)
    drawn = st.builds(overflowing, those_there_are(scenarios.map(stepped)), st.sampled_from(OVERFLOWS))
    return drawn | at_the_largest_scale(claims) if claims.sixteen_bits else drawn


def overflowing(scenario: Scenario, how: str) -> Scenario:
    """The scenario with overflows of this kind."""
    return altered(scenario, [place for place, batch in scenario.events(Backward) if batch.overflow], overflows=how)


def at_the_largest_scale(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in float16 with a step and the largest loss scale for which all gradients are finite."""
    drawn = exact_scenarios(claims, has=("16 bits", "step"))
    return those_there_are(drawn.map(lambda scenario: _scaled_up(scenario, claims)))


def _scaled_up(scenario: Scenario, claims: Claims) -> Scenario | None:
    """The scenario in float16 with the largest loss scale for which the oracle knows the result."""
    model = tuple(replace(parameter, dtype="float16") for parameter in scenario.parameters)
    for power in range(16, 3, -1):
        other = replace(scenario, parameters=model, probe="linear", loss_scale=LossScale(2.0**power))
        if known(other, claims):
            return other
    return None


def with_masters(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with master weights, and one step or several."""
    return st.one_of(
        exact_scenarios(claims, has=("16 bits", "masters")),
        exact_scenarios(claims, has=("16 bits", "masters", "several steps")),
        exact_scenarios(claims, has=("16 bits", "masters", "several steps", "adam")),
    )


def many_micro_batches(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which every micro-batch inside `no_sync` is repeated.

    If gradients are sent in 16 bits, the numbers are large and cancel, so that sums still fit.
    """

    def repeated(drawn: tuple[Scenario, int]) -> Scenario | None:
        scenario, times = drawn
        other = scenario.with_each(Backward, lambda batch: (batch,) * (1 if batch.synchronize else times))
        if claims.wire_dtype and claims.silent_no_sync:
            other = replace(other, signs=CANCELLING, probe="linear")
        return other if known(other, claims) else None

    accumulating = exact_scenarios(claims, has=("accumulation",))
    return those_there_are(st.tuples(accumulating, st.integers(2, 6)).map(repeated))


def summing_first(claims: Claims) -> Claims:
    """The claims, with division after the sum."""
    return replace(claims, averaging=AVERAGINGS[0])


def near_the_largest_number(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in float16 with a loss scale with which sums overflow, and means do not."""

    def scaled(scenario: Scenario) -> Scenario | None:
        other = _scaled_up(scenario, claims)
        # With mixed signs, values that are too large may cancel.
        return None if other is None or other.signs == "mixed" or known(other, summing_first(claims)) else other

    return those_there_are(exact_scenarios(claims, has=("16 bits",)).map(scaled))


@law(
    "P13",
    exact_scenarios,
    needs=lambda claims: claims.wire_dtype is None and claims.most_ranks > 1,
    witnesses={"gradients were sent before they were looked at": SENDS},
    shown_by=anything,
    share=0.05,
)
def test_gradients_travel_in_their_own_dtype_or_a_wider_one(trial: Trial, scenario: Scenario) -> None:
    """No gradient is reduced in a dtype that cannot represent all values of its own dtype.

    Why: each hop rounds to the dtype on the wire, and the error grows with the number of ranks. Small test values fit
    into 8 bits and hide it.

    Broken by deciding on a dtype too early: pytorch/pytorch#186998.
    """
    run = trial.run(scenario)
    trial.witnessed["gradients were sent before they were looked at"] += in_training(run)
    wide_enough(run, "Gradients travel in too narrow a dtype.")


def wide_and_narrow(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios, half of them in 16 bits if claimed."""
    kinds = [(), ("16 bits",)] if claims.sixteen_bits else [()]
    return st.one_of(*(exact_scenarios(claims, has=has) for has in kinds))


@law(
    "P13",
    wide_and_narrow,
    needs=lambda claims: claims.reduce_dtype is not None and claims.most_ranks > 1,
    witnesses={IN_ANOTHER: IN_SIXTEEN},
    shown_by=anything,
    share=0.5,
)
def test_gradients_are_reduced_in_the_dtype_that_is_claimed(trial: Trial, scenario: Scenario) -> None:
    """If a dtype for reductions is claimed, every gradient is reduced in it, or in its own dtype if that is wider.

    Why: 16-bit gradients of many ranks or micro-batches are added in float32, because 16 bits have too few digits.
    Exact test data does not need these digits, so only the collectives show the dtype.

    Broken by a cast that is copied back, and by a dtype that is decided while parameters are frozen:
    pytorch/pytorch#63375, pytorch/pytorch#186998.
    """
    held_to_its_dtype(trial, scenario, "Gradients are not reduced in the dtype that is claimed.")


@law(
    "P13",
    exact_scenarios,
    needs=lambda claims: claims.wire_dtype is not None and claims.most_ranks > 1,
    witnesses={IN_ANOTHER: SENDS},
    shown_by=anything,
    share=0.1,
)
def test_compressed_gradients_travel_in_the_dtype_that_is_claimed(trial: Trial, scenario: Scenario) -> None:
    """If gradients are claimed to travel in 16 bits, every one of them does.

    Why: compression gives up digits for half of the traffic. Values do not show the dtype, since wider ones are right
    as well. The other 16-bit dtype has another range and precision.

    Broken by a cast that is copied back, by float16 as the default for all, by an inverted condition:
    pytorch/pytorch#63375, deepspeedai/DeepSpeed#2071, deepspeedai/DeepSpeed#4540.
    """
    held_to_its_dtype(trial, scenario, "Gradients do not travel in the dtype that is claimed.")


def held_to_its_dtype(trial: Trial, scenario: Scenario, headline: str) -> None:
    """Check the dtype in which gradients are sent. Witnesses if it must differ from their own dtype."""
    run = trial.run(scenario)
    trial.witnessed[IN_ANOTHER] += in_training(run) and any(
        count and on_the_wire(dtype, trial.claims) != dtype for dtype, count in due(scenario).items()
    )
    as_claimed(run, trial.claims, headline)


@law(
    "P13",
    lambda claims: exact_scenarios(claims, has=("16 bits",)),
    needs=lambda claims: claims.sixteen_bits,
    shown_by=having("16 bits"),
    share=0.8,
)
def test_sixteen_bit_gradients_are_exact_where_their_sums_are(trial: Trial, scenario: Scenario) -> None:
    """If all partial sums of bfloat16 and float16 gradients fit the dtype, the result is the mean, bit for bit.

    Why: then no order of reduction rounds. A difference is a wrong factor, a wrong format or a lost term, not
    round-off.

    Broken by using the first parameter's dtype for all: facebookresearch/fairscale#583. Recipes: one format taken for
    the other, reciprocals rounded to 16 bits.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "16-bit gradients are not the mean.", about="gradient")


@law(
    "P13",
    near_the_largest_number,
    needs=lambda claims: claims.sixteen_bits and claims.averaging in AVERAGINGS[1:],
    witnesses={"the sum over ranks would have overflowed": SUM_OVERFLOWS},
)
def test_no_sum_overflows_where_the_mean_is_representable(trial: Trial, scenario: Scenario) -> None:
    """Code that divides before it sums gives finite means of float16 gradients whose sum exceeds 65504.

    Why: dividing first exists for this purpose. A loss scale is chosen so that gradients are as large as possible.

    Recipes: sums that come first after all, and infinities that are clamped to look sound. No report of it is known.
    """
    trial.witnessed["the sum over ranks would have overflowed"] += known(scenario, summing_first(trial.claims)) is None
    judge.values_equal(*trial.run_and_expect(scenario), "A mean that is representable is wrong.", about="gradient")


@law("P13", many_micro_batches, needs=lambda claims: claims.accumulation)
def test_the_error_does_not_grow_with_the_number_of_micro_batches(trial: Trial, scenario: Scenario) -> None:
    """If all partial sums fit the parameter's dtype, many micro-batches lose nothing.

    Why: accumulation needs at least the dtype of the gradients. Sums kept in the dtype of the wire round once for each
    micro-batch.

    Broken by that: pytorch/pytorch#194628.
    """
    judge.values_equal(
        *trial.run_and_expect(scenario), "Digits are lost from micro-batch to micro-batch.", about="gradient"
    )


def unscales_and_clips(scenario: Scenario) -> bool:
    """True if a Clip follows after gradients were unscaled."""
    kinds = [type(event) for event in scenario.program]
    return anything(scenario) and Unscale in kinds and Clip in kinds[kinds.index(Unscale) :]


@law(
    "P13",
    unscaled_and_clipped,
    witnesses={"gradients were unscaled and clipped": UNSCALED},
    shown_by=unscales_and_clips,
    share=0.6,
)
def test_gradients_are_unscaled_before_they_are_clipped(trial: Trial, scenario: Scenario) -> None:
    """The norm that is returned, and that decides, is the norm of gradients divided by the loss scale, once.

    Why: a largest norm is chosen for the loss, not for its multiple. The loss scale changes by powers of two during
    training.

    Recipes: unscaling that is postponed to the step, or done twice. A report of the first names no cause:
    Lightning-AI/pytorch-lightning#19536.
    """
    run = trial.run(scenario)
    expected = trial.expected(scenario)
    trial.witnessed["gradients were unscaled and clipped"] += bool(expected.norms)
    words = "Scaled gradients are clipped."
    judge.values_equal(run, expected, words, of=("gradient", "norm"))


@law(
    "P13",
    stepped_after_an_overflow,
    needs=lambda claims: not claims.plain_layers,  # in plain layers, one infinite gradient makes others NaN
    witnesses={"a step was skipped": SKIPPED, "gradients were clipped after an overflow": CLIPPED},
    shown_by=all_of("step", "overflow"),
    share=0.5,
)
def test_ranks_agree_on_overflows_and_on_the_loss_scale(trial: Trial, scenario: Scenario) -> None:
    """If one element on one rank is not finite, every rank skips the step, halves the loss scale and keeps its state.

    Why: the mean is then not finite on any rank. A rank that steps destroys its replica, and scales that differ stay
    different. Clipping may come in between, as in any loop. Its result on such gradients is open, but it ends on every
    rank.

    Broken by ranks that decide alone, and by overflows that are not looked for: NVIDIA/Megatron-LM#5331,
    deepspeedai/DeepSpeed#8035.
    """
    run = trial.run(scenario)
    scales = list(run.observations[0]["loss_scales"].values())
    trial.witnessed["a step was skipped"] += any(after < scenario.loss_scale.initial for after in scales)  # type: ignore[union-attr]
    trial.witnessed["gradients were clipped after an overflow"] += any(
        map(scenario.overflowed, run.observations[0]["norms"])
    )
    words = "An overflow is not handled alike everywhere."
    judge.values_equal(run, trial.expected(scenario), words, of=("parameter", "state", "loss scale"))


@law(
    "P13",
    with_masters,
    needs=lambda claims: claims.sixteen_bits and claims.may_keep_masters,
    shown_by=having("masters"),
)
def test_masters_are_float32(trial: Trial, scenario: Scenario) -> None:
    """With master weights, updates add up in float32. After each step a parameter is its master, rounded to 16 bits.

    Why: most updates are smaller than the gap between two 16-bit numbers, and would be lost one by one (Micikevicius et
    al., ICLR 2018).

    Broken by masters and moments that are kept in, or pass through, the parameters' dtype: TensorAuto/OpenTau#182,
    databricks/flashoptim#2.
    """
    words = "Masters do not hold what float32 would."
    judge.values_equal(trial.run(scenario), trial.expected(scenario), words, of=("parameter", "state"))
