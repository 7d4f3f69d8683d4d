"""P5: all ranks issue the same collectives in the same order."""

from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.caller import Differing
from lockstep.oracle.events import ActAlone, Backward, Evaluate, Finish, Join, Step
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.failure_place import place_of
from lockstep.properties.judging import judge
from lockstep.properties.judging.matching import same_collectives
from lockstep.properties.law import law
from lockstep.properties.naming import difference
from lockstep.properties.strategies import evaluations, exact_scenarios
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import FEATURES, anything, having
from lockstep.properties.strategies.moments import altered
from lockstep.properties.trial import SENT, Trial
from lockstep.properties.verdict import Crashes, LawBroken, NotRunnableHere, Refused, SilentlyWrong
from lockstep.worlds.contract import RankError

TWO_RANKS = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
EVALUATED = Scenario(2, (Parameter((1,)),), (Evaluate(), Backward(((0,), (0,))), Finish()))


def alike(trial: Trial, scenario: Scenario, headline: str) -> None:
    """Check that every rank of a run issues the same collectives."""
    same_collectives(trial.run(scenario), headline)


@law("P5", exact_scenarios, witnesses={SENT: TWO_RANKS}, shown_by=anything, share=0.3)
def test_every_rank_issues_the_same_collectives(trial: Trial, scenario: Scenario) -> None:
    """All members of a group call the same sequence of collectives, with equal operation, reduction, dtype, element
    count and root. Each message that a rank sends to another is received.

    Why: collectives pair up by position. If the sequence depends on a rank's own data, the others wait forever, crash,
    or add up different tensors: KellerJordan/Muon#37, deepspeedai/DeepSpeed#291, NVIDIA/Megatron-LM#2218.
    """
    alike(trial, scenario, "Ranks issue different collectives.")


@law(
    "P5",
    lambda claims: st.one_of(
        [
            exact_scenarios(claims, has=(feature,))
            for feature in ("unused", "idle rank")
            if feature == "unused" or FEATURES[feature].claimed(claims)
        ]
    ),
    needs=lambda claims: claims.unused is not None,
    witnesses={SENT: TWO_RANKS},
    shown_by=having("unused"),
    share=0.1,
)
def test_no_rank_waits_for_ever_where_ranks_use_different_parameters(trial: Trial, scenario: Scenario) -> None:
    """The sequence of collectives does not depend on the parameters that a rank has used.

    Why: a rank does not know which parameters the others have used, so it cannot leave out a collective on its own.

    Broken by skipping gradients that are None, and by starting reductions only from hooks: deepspeedai/DeepSpeed#291,
    horovod/horovod#597, pytorch/pytorch#158719.
    """
    alike(trial, scenario, "Ranks that use different parameters issue different collectives.")


@law(
    "P5",
    lambda claims: exact_scenarios(claims, has=("raise",)),
    needs=lambda claims: claims.survives_errors,
    witnesses={SENT: TWO_RANKS},
    shown_by=having("raise"),
    share=0.3,
)
def test_an_error_on_some_ranks_leaves_all_in_step(trial: Trial, scenario: Scenario) -> None:
    """After the caller's error, on one rank or on all, all ranks still call the same collectives.

    Why: work that has begun must be finished or dropped on every rank alike. Otherwise the rank that failed owes a
    collective, or repeats one. No other test suite raises inside `no_sync` and trains on.

    Broken by a `no_sync` without try and finally, as in the source of huggingface/picotron. No report of it is known.
    """
    alike(trial, scenario, "After an error of the caller's, ranks issue different collectives.")


def with_metrics(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which the caller adds a number over the ranks after one micro-batch or after each.

    They have any features, and in most ranks use different parameters.
    """
    stays = replace(claims, joins=())
    differing = ("unused",) if claims.unused is not None else ()
    drawn = with_any(stays, 1, has=differing) | with_any(stays, 2)
    made = drawn.flatmap(lambda scenario: st.sampled_from(adding_up(scenario)))
    return made.filter(lambda scenario: any(batch.metric for batch in scenario.microbatches))


def adding_up(scenario: Scenario) -> list[Scenario]:
    """The scenario with a metric after one micro-batch, and after all of them."""
    places = scenario.places(Backward)
    return [altered(scenario, each, metric=True) for each in (*((place,) for place in places), places)]


@law(
    "P5",
    with_metrics,
    needs=lambda claims: claims.callers_collectives,
    witnesses={SENT: altered(TWO_RANKS, (0,), metric=True)},
    shown_by=having("metric"),
)
def test_the_caller_may_have_collectives_of_its_own_right_after_a_backward(trial: Trial, scenario: Scenario) -> None:
    """If the caller all-reduces a number right after a backward, its sum is right, and so is everything else.

    Why: a training loop prints its loss in this way. The caller cannot know which collectives are still to come. If one
    rank sends a bucket before the caller's collective and another after it, unrelated tensors meet.

    Broken by sending complete buckets in backward and the rest at the end of the synchronization. No report of it is
    known.
    """
    run, expected = trial.run_and_expect(scenario)
    headline = "A collective of the caller's own, right after a backward, does not go by itself."
    judge.values_equal(run, expected, headline, of=("metric",))
    same_collectives(run, headline)
    judge.values_equal(run, expected, headline)


def evaluated(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with an evaluation: anywhere, before each of several steps, or after each micro-batch in `no_sync`.

    An evaluation before a step shows if parameters are stale afterwards.
    """
    stepped = exact_scenarios(claims, has=("several steps",)).filter(lambda scenario: scenario.probe == "quadratic")
    kinds = [exact_scenarios(claims, has=("evaluate",))]
    kinds += [st.builds(before_steps, stepped.filter(can_be_evaluated), evaluations(claims))]
    if claims.accumulation:
        local = exact_scenarios(claims, has=("accumulation",)).filter(can_be_evaluated)
        kinds += [st.builds(after_local_microbatches, local, evaluations(claims))]
    return st.one_of(kinds)


def can_be_evaluated(scenario: Scenario) -> bool:
    """True if an evaluation may come anywhere: all ranks still have batches, and no buffers are broadcast."""
    return not scenario.broadcast_buffers and not scenario.has(Join)


def before_steps(scenario: Scenario, evaluation: Evaluate) -> Scenario:
    """The scenario with this evaluation before each step."""
    return scenario.with_each(Step, lambda step: (evaluation, step))


def after_local_microbatches(scenario: Scenario, evaluation: Evaluate) -> Scenario:
    """The scenario with this evaluation after each micro-batch that does not synchronize."""
    return scenario.with_each(Backward, lambda batch: (batch,) if batch.synchronize else (batch, evaluation))


@law(
    "P5",
    evaluated,
    needs=lambda claims: claims.evaluates,
    witnesses={SENT: EVALUATED},
    shown_by=having("evaluate"),
    share=0.1,
)
def test_a_forward_without_a_backward_leaves_all_in_step(trial: Trial, scenario: Scenario) -> None:
    """After an evaluation, at any place between micro-batches, ranks call the same collectives, and training is
    unchanged.

    Why: forwards and backwards do not come in pairs. Code that counts forwards, keeps the parameters that one has
    gathered, or waits for a backward after each, continues in a wrong state.

    Broken by all three: pytorch/pytorch#58111, pytorch/pytorch#143647, and FSDP1 and FSDP2, which forget the next step
    (docs/findings).
    """
    headline = "After a forward without a backward, training goes wrong."
    alike(trial, scenario, headline)
    judge.values_equal(*trial.run_and_expect(scenario), headline)


ALONE = "one rank alone was seen to read parameters in an evaluation"


def with_one_alone(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any features except a join, in which one rank acts alone."""
    steady = replace(claims.without_broadcasts(), joins=())
    return with_any(steady, 2, has=("act alone",)) | with_any(steady, 1, has=("act alone", "several steps"))


@law(
    "P5",
    with_one_alone,
    needs=lambda claims: claims.acts_alone and claims.evaluates,
    witnesses={ALONE: replace(TWO_RANKS, program=(ActAlone(0), *TWO_RANKS.program))},
    shown_by=having("act alone"),
)
def test_what_one_rank_does_alone_leaves_all_in_step(trial: Trial, scenario: Scenario) -> None:
    """If one rank alone evaluates the model and takes its state dict, it reads the current parameters, and training
    continues unchanged.

    Why: one rank validates and saves for all. A collective that it starts then has no partner, or the wrong one.

    Broken by broadcasting buffers before every forward: pytorch/pytorch#54059. Recipes: a count of forwards decides;
    state is put together when it is asked for.
    """
    headline = "What one rank does alone, the others would have to do as well."
    run, places = trial.run(scenario), scenario.places(ActAlone)
    read = [values for seen in run.observations for place in places for values in seen["evaluated"].get(place, ())]
    trial.witnessed[ALONE] += any(each is not None for each in read)
    same_collectives(run, headline)
    judge.evaluations_equal(run, headline)
    judge.values_equal(run, trial.expected(scenario), headline)


DIFFERED = "ranks had models that differ"


def with_one_that_differs(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with several ranks and any feature, in which one rank's model differs.

    Tied parameters and units are left out, because such a model would differ in more than one way.
    """
    plain = replace(claims, tied_parameters=False, freezing=False, replaced_parameters=False)
    several = with_any(plain, 1).filter(lambda scenario: scenario.world_size > 1 and not scenario.units)

    def chosen(scenario: Scenario) -> st.SearchStrategy[Scenario]:
        ways, ranks = st.sampled_from(differences(scenario)), st.sampled_from(range(scenario.world_size)[::-1])
        return st.builds(lambda way, rank: replace(scenario, differs=Differing(rank, *way)), ways, ranks)

    return several.flatmap(chosen)


def differences(scenario: Scenario) -> list[tuple[str, int]]:
    """The possible differences: of single parameters, and of the whole model."""
    found = [("number", 0)] + [("order", 0)] * (len(scenario.parameters) > 1)
    for index, parameter in enumerate(scenario.parameters):
        other = {
            "size": True,
            "shape": True,
            "name": True,
            "dtype": parameter.dtype in ("float32", "float64"),
            "trained": parameter.trainable,
        }
        found += [(way, index) for way, possible in other.items() if possible]
    return found


@law(
    "P5",
    with_one_that_differs,
    needs=lambda claims: claims.compares_models and claims.most_ranks > 1,
    witnesses={DIFFERED: replace(TWO_RANKS, differs=Differing(1, "number"))},
)
def test_models_that_differ_between_ranks_are_refused_on_every_rank(trial: Trial, scenario: Scenario) -> None:
    """If one rank's model has other parameters than the others', or trains others, every rank raises in the
    constructor. If all are alike, no rank raises.

    Why: a seed, a version or a branch on the rank makes models differ. Messages then meet unrelated ones, or none.

    Broken by comparing too little, and by comparing with rank 0, which then hears nothing and waits, as in DDP:
    pytorch/pytorch#73547, pytorch/pytorch#76449.
    """
    assert scenario.differs is not None
    alike = replace(scenario, differs=None)
    judge.values_equal(*trial.run_and_expect(alike), "Models that are alike are not trained as such.")
    trial.witnessed[DIFFERED] += 1
    words = f"in construction that {difference(scenario.differs)}."
    try:
        run = trial.run(scenario)
    except NotRunnableHere:
        raise
    except (Refused, LawBroken) as ended:
        if all(report.error is not None and in_construction(report.error) for report in ended.outcome):
            return
        if isinstance(ended, LawBroken):
            raise
        raise Crashes(f"Ranks do not say {words}", scenario, ended.outcome, choices=ended.choices) from ended
    raise SilentlyWrong(f"Nobody says {words}", scenario, run.outcome, choices=run.choices)


def in_construction(error: RankError) -> bool:
    """True if a rank raised this error while it wrapped its model."""
    return error.kind == "raised" and place_of(error.notes) == -1
