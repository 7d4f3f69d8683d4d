"""P5: ranks that talk to each other say the same things in the same order."""

from dataclasses import replace

from hypothesis import strategies as st

from oracle.events import Event
from oracle.program import Backward, Evaluate, Finish, Join, Parameter, Scenario, Step
from properties.claims import Claims
from properties.judging import judge
from properties.law import law
from properties.strategies import evaluations, exact_scenarios
from properties.trial import SENT, Trial

TWO_RANKS = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
EVALUATED = Scenario(2, (Parameter((1,)),), (Evaluate(), Backward(((0,), (0,))), Finish()))


def alike(trial: Trial, scenario: Scenario, headline: str) -> None:
    """Every rank of a run issues the same collectives."""
    judge.same_collectives(trial.run(scenario), headline)


@law("P5", exact_scenarios, witnesses={SENT: TWO_RANKS})
def test_every_rank_issues_the_same_collectives(trial: Trial, scenario: Scenario) -> None:
    """Operation, reduction, dtype, element count and root agree, collective by collective, on all members of a group;
    and whatever one rank sends to another, that one receives.

    Why: collectives pair up by position. Where the sequence depends on what a rank happens to compute, peers wait for
    ever, crash, or add up different things: KellerJordan/Muon#37, deepspeedai/DeepSpeed#291, NVIDIA/Megatron-LM#2218.
    """
    alike(trial, scenario, "Ranks issue different collectives.")


@law(
    "P5",
    lambda claims: exact_scenarios(claims, has=("unused",)),
    needs=lambda claims: claims.unused is not None,
    witnesses={SENT: TWO_RANKS},
)
def test_no_rank_waits_for_ever_where_ranks_use_different_parameters(trial: Trial, scenario: Scenario) -> None:
    """The sequence of collectives does not depend on which parameters a rank has used.

    Why: a rank does not know what the others have used, so nothing may be left out on its own account. Broken by
    skipping gradients that are None, by launching from hooks alone: deepspeedai/DeepSpeed#291, horovod/horovod#597,
    pytorch/pytorch#158719.
    """
    alike(trial, scenario, "Ranks that use different parameters issue different collectives.")


@law(
    "P5",
    lambda claims: exact_scenarios(claims, has=("raise",)),
    needs=lambda claims: claims.survives_errors,
    witnesses={SENT: TWO_RANKS},
)
def test_an_error_on_some_ranks_leaves_all_in_step(trial: Trial, scenario: Scenario) -> None:
    """After an error of the caller's, on one rank or on all, ranks go on issuing the same collectives.

    Why: what was begun must be finished or forgotten on every rank alike; else a rank that failed owes or repeats a
    collective. No peer's tests raise inside `no_sync` and train on. Broken by `no_sync` without try and finally, as in
    the source of huggingface/picotron. No report of it is known.
    """
    alike(trial, scenario, "After an error of the caller's, ranks issue different collectives.")


def evaluated(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with an evaluation; with one before each of several steps, so that stale parameters show after it; and
    with one after each micro-batch inside `no_sync`.
    """
    stepped = exact_scenarios(claims, has=("several steps",)).filter(lambda scenario: scenario.probe == "quadratic")
    kinds = [exact_scenarios(claims, has=("evaluate",))]
    kinds += [st.builds(before_steps, stepped.filter(can_be_evaluated), evaluations(claims))]
    if claims.accumulation:
        local = exact_scenarios(claims, has=("accumulation",)).filter(can_be_evaluated)
        kinds += [st.builds(after_local_microbatches, local, evaluations(claims))]
    return st.one_of(kinds)


def can_be_evaluated(scenario: Scenario) -> bool:
    """Whether an evaluation may come anywhere: it does while no rank is gone, and broadcasts no buffers."""
    return not scenario.broadcast_buffers and not scenario.has(Join)


def before_steps(scenario: Scenario, evaluation: Evaluate) -> Scenario:
    """The same, with such an evaluation before each step."""
    program: list[Event] = []
    for event in scenario.program:
        program += [evaluation, event] if isinstance(event, Step) else [event]
    return replace(scenario, program=tuple(program))


def after_local_microbatches(scenario: Scenario, evaluation: Evaluate) -> Scenario:
    """The same, with such an evaluation after each micro-batch that does not synchronize."""
    program: list[Event] = []
    for event in scenario.program:
        local = isinstance(event, Backward) and not event.synchronize
        program += [event, evaluation] if local else [event]
    return replace(scenario, program=tuple(program))


@law(
    "P5",
    evaluated,
    needs=lambda claims: claims.evaluates,
    witnesses={SENT: EVALUATED},
)
def test_a_forward_without_a_backward_leaves_all_in_step(trial: Trial, scenario: Scenario) -> None:
    """After an evaluation, wherever it comes between micro-batches, ranks are in step and training is what it was.

    Why: forwards and backwards do not come in pairs. Who counts forwards, keeps what one has gathered, or waits for a
    backward after each, goes on with something else. Broken by all three: pytorch/pytorch#58111,
    pytorch/pytorch#143647, and FSDP1 and FSDP2, which forget the step that comes next (properties/FINDINGS.md).
    """
    headline = "After a forward without a backward, training goes wrong."
    alike(trial, scenario, headline)
    judge.by_the_oracle(trial, scenario, headline)
