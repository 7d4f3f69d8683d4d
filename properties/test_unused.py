"""P6: unused parameters."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Freeze
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.expected import is_exact, known
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.features import anything
from lockstep.properties.strategies.variants import one_by_one, with_one_unit
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial


def claimed(claims: Claims) -> bool:
    """True if parameters may be unused."""
    return claims.unused is not None


def used_by_nobody(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which no rank uses the last trainable tensor with a single name."""
    drawn = exact_scenarios(claims, has=("unused",), enclosed=False).filter(
        lambda scenario: spare(scenario) is not None
    )
    return drawn.map(without_the_spare).filter(lambda scenario: is_exact(scenario, claims))


def spare(scenario: Scenario) -> int | None:
    """The last tensor with a single name that is trainable throughout; None if it is the only one."""
    if scenario.has(Freeze):
        return None
    trained = [index for index, parameter in enumerate(scenario.parameters) if parameter.trainable]
    named = {parameter.tied for parameter in scenario.parameters}
    spares = [index for index in trained if scenario.parameters[index].tied is None and index not in named]
    return spares[-1] if spares and len(trained) > 1 else None


def without_the_spare(scenario: Scenario) -> Scenario:
    """The scenario without uses of the spare tensor. A sample that used nothing else uses another one."""
    unused = spare(scenario)
    other = next(i for i, parameter in enumerate(scenario.parameters) if parameter.trainable and i != unused)

    def used(order: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(index for index in order if index != unused) or (other,)

    return scenario.with_each(Backward, lambda batch: (batch.with_each_order(used),))


def leaves_one_to_nobody(scenario: Scenario) -> bool:
    """True if no rank uses some tensor that is trainable throughout."""
    used = {scenario.tensor(p) for batch in scenario.microbatches for order in batch.orders for p in order}
    trained = {scenario.tensor(index) for index, each in enumerate(scenario.parameters) if each.trainable}
    return anything(scenario) and not scenario.has(Freeze) and bool(scenario.microbatches) and bool(trained - used)


@law("P6", used_by_nobody, needs=claimed, shown_by=leaves_one_to_nobody, share=0.6)
def test_a_parameter_that_no_rank_used_gets_what_is_claimed(trial: Trial, scenario: Scenario) -> None:
    """The gradient of a parameter that no rank used stays as it was (None if it was None), or becomes zero, as claimed.

    Why: to an optimizer, zero is not None: weight decay and momentum move a parameter that has a gradient of zeros.

    Broken by handing out whole buckets: pytorch/pytorch#28294.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "A parameter that no rank used does not get what is claimed.")


@law("P6", used_by_nobody, needs=lambda claims: claims.unused == "untouched")
def test_a_parameter_that_nobody_uses_is_as_good_as_frozen(trial: Trial, scenario: Scenario) -> None:
    """If that parameter is frozen instead, every value is the same: its own, and those of the others.

    Why: no rank has a gradient for it. Code that waits for a gradient that never comes must not block the reduction of
    others.

    Broken by buckets that never become complete: pytorch/pytorch#128949, NVIDIA/Megatron-LM#1150.
    """
    used = {scenario.tensor(p) for batch in scenario.microbatches for order in batch.orders for p in order}
    parameters = tuple(
        replace(parameter, trainable=parameter.trainable and scenario.tensor(index) in used)
        for index, parameter in enumerate(scenario.parameters)
    )
    frozen = trial.run(replace(scenario, parameters=parameters))
    judge.runs_equal(trial.run(scenario), frozen, "A parameter that nobody uses is not as good as frozen.")


def used_by_some(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with a synchronization before which some ranks have used parameters that others have not."""
    return exact_scenarios(claims, has=("unused",)).filter(
        lambda scenario: any(len({frozenset(o) for o in b.orders}) > 1 for b in scenario.microbatches if b.synchronize)
    )


@law("P6", used_by_some, needs=lambda claims: claimed(claims) and claims.most_ranks > 1)
def test_a_parameter_that_some_ranks_used_gets_the_mean_on_all(trial: Trial, scenario: Scenario) -> None:
    """Ranks that did not use a parameter contribute zeros to its mean, and receive the mean like the others.

    Why: the mean over the whole batch counts every sample, and every replica must take the same step.

    Broken by ranks that keep None (pytorch/pytorch#158719), by dividing by the number of contributors, and by sending
    stale contents of a buffer.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "A parameter that only some ranks used does not get the mean.")


def used_inside_no_sync_alone(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which a rank uses a parameter inside `no_sync` and not in the synchronizing micro-batch."""

    def holds(scenario: Scenario) -> bool:
        batches = scenario.microbatches
        return any(
            not first.synchronize and any(set(o) - set(p) for o, p in zip(first.orders, then.orders, strict=True))
            for first, then in pairwise(batches)
        )

    drawn = exact_scenarios(claims, has=("unused", "accumulation"))
    if claims.stage == 3:
        has = ("accumulation", *["replicas"] * claims.replicas)
        used = exact_scenarios(replace(claims, unused=None), "same on all ranks", has, enclosed=False)
        drawn |= used.filter(lambda scenario: len(one_by_one(scenario)) > 1).map(without_its_unit)
    there = drawn.filter(lambda scenario: holds(scenario) and not beyond(claims, scenario))
    return there.filter(lambda scenario: known(scenario, claims) is not None)


def without_its_unit(scenario: Scenario) -> Scenario:
    """The scenario with the last trainable parameter in a unit that no rank calls in synchronizing micro-batches."""
    last = one_by_one(scenario)[-1]

    def without(batch: Backward) -> tuple[Backward]:
        other = batch.with_each_order(lambda order: (index for index in order if scenario.tensor(index) != last))
        return (other if batch.synchronize and all(other.orders) else batch,)

    return with_one_unit(scenario.with_each(Backward, without))


@law("P6", used_inside_no_sync_alone, needs=lambda claims: claimed(claims) and claims.accumulation)
def test_what_was_used_only_inside_no_sync_is_synchronized(trial: Trial, scenario: Scenario) -> None:
    """A parameter used in an earlier micro-batch counts at the next synchronization, even if that micro-batch does not
    use it.

    Why: all gradients accumulated since the last mean are due.

    Broken by noting uses only in backwards that synchronize: pytorch/pytorch#69031.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "What was used inside no_sync alone is not synchronized.")


@law(
    "P6",
    lambda claims: exact_scenarios(claims, has=("idle rank",)),
    needs=lambda claims: claimed(claims) and claims.idle_ranks and claims.most_ranks > 1,
)
def test_a_rank_that_uses_no_parameter_gets_the_mean_like_the_others(trial: Trial, scenario: Scenario) -> None:
    """In a micro-batch of which a rank uses no parameter it contributes zeros, and receives the means of the others.

    Why: a batch may be all padding, or of a task that one part of the model serves. No hook fires on such a rank, so
    who waits for the first of them to send anything leaves the others waiting. Broken where nothing at all was used:
    pytorch/pytorch#23425, NVIDIA-NeMo/Automodel#2468.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "A rank that uses no parameter goes wrong, or others do.")
