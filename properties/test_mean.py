"""P1: the result of every synchronizing backward."""

from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Event, Finish, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import TAKEN
from lockstep.properties.expected import is_exact
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.features import anything, having
from lockstep.properties.strategies.moments import altered
from lockstep.properties.strategies.several import with_losses
from lockstep.properties.strategies.variants import is_alike_on_one_rank, on_one_rank, with_one_rank_alike
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import SENT, Trial

ONE_BATCH = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
MOST_RANKS, MOST_WINDOWS, MANY = 3, 33, 16
LONG = f"more than {MANY} means were taken"
LONG_RUN = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish(), ZeroGrad()) * (MANY + 1))


@law("P1", exact_scenarios, shown_by=anything)
def test_gradients_equal_the_mean_over_ranks(trial: Trial, scenario: Scenario) -> None:
    """After each synchronization every gradient is, on every rank, the mean over ranks of the accumulated gradients.

    Why: this makes a step on N ranks a step on the whole batch. The data is exact, so the order of the reduction is no
    excuse for a difference.

    Broken by gradients summed, divided twice, skipped or swapped: pytorch/torchtitan#2323, deepspeedai/DeepSpeed#2343.
    """
    expected = trial.expected(scenario)
    judge.values_equal(trial.run(scenario), expected, "Gradients are not the mean over ranks.", about="gradient")


def over_and_over(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Runs with many windows on a few ranks, which repeat some micro-batches.

    They show faults of counters, ring buffers and caches that overflow or wrap around.
    """
    few = min(claims.most_ranks, MOST_RANKS)
    plain = replace(claims, most_ranks=few, subgroups=False, joins=(), freezing=False, sixteen_bits=False)
    drawn = st.builds(again_and_again, exact_scenarios(plain, enclosed=False), st.integers(1, MOST_WINDOWS))
    return drawn.filter(lambda scenario: is_exact(scenario, claims) and not beyond(claims, scenario))


def again_and_again(scenario: Scenario, windows: int) -> Scenario:
    """So many windows that cycle through the micro-batches of a scenario. If it has a step, one follows each window."""
    batches = [replace(batch, together=False, overflow=()) for batch in scenario.microbatches]
    steps = scenario.has(Step)
    program: list[Event] = []
    for batch in (batches[window % len(batches)] for window in range(windows)):
        program += [] if batch.synchronize else [batch]
        program += [replace(batch, synchronize=True, nested=False), Finish()]
        program += [Step(), ZeroGrad()] if steps else [ZeroGrad()]
    probe = "linear" if steps else scenario.probe  # after many steps, weights would need too many bits
    return replace(scenario, program=tuple(program), probe=probe, loss_scale=None, sparse=Scenario.sparse)


@law("P1", over_and_over, witnesses={LONG: LONG_RUN})
def test_the_mean_is_right_however_often_it_has_been_taken(trial: Trial, scenario: Scenario) -> None:
    """The last of many synchronizations leaves the mean like the first, and so does the last of many steps.

    Why: a training run has any number of steps.

    Recipes: state that is kept for a number of steps, goes round in a ring of buffers, is rebuilt periodically, or ends
    with a warm-up. No report of it is known.
    """
    judge.values_equal(
        *trial.run_and_expect(scenario), "After many synchronizations gradients are not the mean over ranks."
    )
    trial.witnessed[LONG] += scenario.program.count(Finish()) > MANY


def with_losses_of_gradients(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which the loss of one micro-batch, or of all, is made of gradients that the caller computes itself.

    It may also include the outputs. They have any two features, or accumulation.
    """
    return with_losses(claims, TAKEN)


@law(
    "P1",
    with_losses_of_gradients,
    needs=lambda claims: claims.double_backward and claims.most_ranks > 1,
    witnesses={SENT: altered(ONE_BATCH, (0,), loss=TAKEN[0])},
    shown_by=having("take gradients"),
)
def test_a_loss_of_gradients_is_averaged_like_any_other(trial: Trial, scenario: Scenario) -> None:
    """If the caller computes gradients with respect to inputs by `torch.autograd.grad` and builds the loss, or half of
    it, from these, parameters get the mean over ranks as usual.

    Why: gradient penalties are computed in this way, and forces in energy models. Such a gradient is the caller's, and
    does not end a backward.

    Broken by preparations for the backward of the outputs: pytorch/pytorch#47562, pytorch/pytorch#172543.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "A loss of gradients does not give the mean over ranks.")


def usable_on_one_rank(claims: Claims, scenario: Scenario) -> Scenario | None:
    """A scenario with several ranks that one rank can run as well."""
    usable = scenario.world_size > 1 and is_exact(scenario, claims) and is_alike_on_one_rank(scenario, claims)
    return scenario if usable and not beyond(claims, on_one_rank(scenario)) else None


@law("P1", with_one_rank_alike, made_of=usable_on_one_rank, share=0.35)
def test_one_step_on_n_ranks_equals_one_step_on_one_rank_with_the_whole_batch(trial: Trial, scenario: Scenario) -> None:
    """The same samples, all on one rank, give the same gradients and parameters.

    Why: distributed data parallelism is equivalent to local training on the whole batch (Li et al., VLDB 2020, 3.1).
    This law needs no oracle: the implementation is compared with itself on a world of one.

    Broken by averaging twice, and by averaging over micro-batches on several ranks but adding them up on one:
    pytorch/torchtitan#2323, KellerJordan/modded-nanogpt#146.
    """
    whole = on_one_rank(scenario)
    judge.runs_equal(trial.run(scenario), trial.run(whole), "N ranks are not one rank with the whole batch.")
