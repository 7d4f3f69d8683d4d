"""P12: the effect of a step on parameters and optimizer state."""

from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.events import (
    Backward,
    Evaluate,
    Event,
    Finish,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    SwapWeights,
    Write,
    ZeroGrad,
)
from lockstep.oracle.model import Group, Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import MASTERS, Claims
from lockstep.properties.expected import known
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import evaluations, exact_scenarios, those_there_are
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import FEATURES, anything, having
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Run, Trial

_WINDOW = (ZeroGrad(), Backward(((0, 1), (0, 1))), Finish(), Step())
_PAIR = (Parameter((1,)), Parameter((1,)))
TWO_STEPS = Scenario(2, _PAIR, _WINDOW * 2, optimizer="Adam")
_WITHOUT_THE_SECOND = (ZeroGrad(), Backward(((0,), (0,))), Finish(), Step())
ONE_SITS_OUT = Scenario(2, _PAIR, (*_WINDOW, *_WITHOUT_THE_SECOND), optimizer="Adam")
NEW_RATE = Scenario(
    2, _PAIR, (*_WINDOW, SetHyperparameters(Hyperparameters(learning_rate=0.25)), *_WINDOW), learning_rate=0.5
)

_GROUPED = (Group((1,)),)
ONE_OF_TWO = Scenario(2, _PAIR, (*_WINDOW[:-1], Step((1,)), *_WINDOW), groups=_GROUPED, optimizer="Adam")
WRITTEN = Scenario(2, _PAIR, (*_WINDOW, Write((0, 1)), *_WINDOW), probe="quadratic")
SWAPPED = replace(TWO_STEPS, program=(*_WINDOW, SwapWeights(), *_WINDOW))
# The second evaluation must not repeat the first one's result.
EVALUATED = Scenario(2, _PAIR, (Evaluate(), *_WINDOW, Evaluate()))


def with_state(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with an optimizer that keeps state, mostly with several steps, some of them without any gradient."""
    idle = ("idle step",) if claims.idle_steps else ()
    return st.one_of(
        exact_scenarios(claims, has=("adam",)),
        exact_scenarios(claims, has=("several steps", "adam")),
        exact_scenarios(claims, has=("several steps", "momentum")),
        exact_scenarios(claims, has=("adam", *idle)),
        exact_scenarios(claims, has=("several steps", "momentum", *idle)),
    )


def with_gaps(claims: Claims) -> st.SearchStrategy[Scenario]:
    """The same, with parameters that some micro-batches do not use."""
    return st.one_of(
        exact_scenarios(claims, has=("unused", "adam")),
        exact_scenarios(claims, has=("unused", "zero grad", "several steps", "adam")),
        exact_scenarios(claims, has=("unused", "zero grad", "several steps", "momentum")),
    )


def with_new_options(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which hyper-parameters change before the first step, or between steps."""
    return st.one_of(
        exact_scenarios(claims, has=("set hyperparameters",)),
        exact_scenarios(claims, has=("step", "groups", "set hyperparameters")),
        exact_scenarios(claims, has=("step", "three groups", "set hyperparameters")),
        exact_scenarios(claims, has=("step", "set hyperparameters", "several steps")),
        exact_scenarios(claims, has=("momentum", "step", "set hyperparameters", "several steps")),
    )


def sits_out(run: Run) -> bool:
    """True if a parameter had no gradient when others had one."""
    gradients = (each for seen in run.observations for each in seen["gradients"].values())
    return any(
        any(gradient is None for gradient in each) and any(gradient is not None for gradient in each)
        for each in gradients
    )


def keeps_state(scenario: Scenario) -> bool:
    """True if an optimizer that keeps state makes a step."""
    stateful = scenario.optimizer != "SGD" or bool(scenario.hyperparameters.momentum)
    return anything(scenario) and stateful and scenario.has(Step)


@law("P12", with_state, witnesses={"an optimizer kept state": TWO_STEPS}, shown_by=keeps_state, share=0.1)
def test_every_step_leaves_the_parameters_and_state_of_one_process(trial: Trial, scenario: Scenario) -> None:
    """After every step the parameters, moments and step counters are those of one process with the mean gradient.

    Why: bias correction divides by 1 - beta**step, so a wrong counter changes the size of every update. Adam's moments
    show a wrong gradient that its parameters hide. Momentum must not move parameters in a step that the loop has
    skipped.

    Broken by state that a step allocates, and by counters that stand still: NVIDIA/Megatron-LM#5976,
    allenai/OLMo-core#317.
    """
    run, expected = trial.run(scenario), trial.expected(scenario)
    # A sharded optimizer may keep state for tensors of its own. Then it shows only in the next step.
    states = (expected.states if trial.claims.is_optimizer else run.observations[0]["states"]).values()
    trial.witnessed["an optimizer kept state"] += any(map(any, states))
    words = "A step does not leave what one process would have."
    judge.values_equal(run, expected, words, of=("parameter", "state"))


@law(
    "P12",
    with_gaps,
    needs=lambda claims: claims.unused == "untouched",
    witnesses={"a parameter had no gradient when others were stepped": ONE_SITS_OUT},
)
def test_a_parameter_without_a_gradient_is_left_alone_by_the_step(trial: Trial, scenario: Scenario) -> None:
    """If no rank has used a parameter since gradients were dropped, its value, moments and step counter stay.

    Why: no gradient is not a gradient of zero, with which momentum and weight decay would move it. The other parameters
    are stepped as usual, each by its own counter.

    Broken by zeros in place of missing gradients: pytorch/pytorch#28294.
    """
    run = trial.run(scenario)
    trial.witnessed["a parameter had no gradient when others were stepped"] += sits_out(run)
    words = "Steps go wrong where a parameter has no gradient."
    judge.values_equal(run, trial.expected(scenario), words, of=("parameter", "state"))


@law("P12", with_state, witnesses={"an optimizer kept state": TWO_STEPS}, shown_by=keeps_state, share=0.05)
def test_optimizer_state_is_the_same_on_every_rank(trial: Trial, scenario: Scenario) -> None:
    """Moments, momentum, counters and masters, gathered to whole tensors, are bitwise those of rank 0 after every step.

    Why: they decide all later steps. Equal parameters today do not show that they are equal.

    Broken by steps, or skips, of single ranks, and by gradients that were not reduced: NVIDIA/Megatron-LM#5331.
    """
    run = trial.run(scenario)
    trial.witnessed["an optimizer kept state"] += any(map(any, run.observations[0]["states"].values()))
    judge.states_equal(run, "Optimizer state differs between ranks.")


def changes_options(scenario: Scenario) -> bool:
    """True if a step follows a change of hyper-parameters."""
    kinds = [type(event) for event in scenario.program]
    return anything(scenario) and SetHyperparameters in kinds and Step in kinds[kinds.index(SetHyperparameters) :]


@law(
    "P12",
    with_new_options,
    witnesses={"hyper-parameters changed between steps": NEW_RATE},
    shown_by=changes_options,
    share=0.2,
)
def test_hyper_parameters_changed_between_steps_take_effect(trial: Trial, scenario: Scenario) -> None:
    """The next step uses the values written to the optimizer's groups since the last one. Its state goes on.

    Why: schedulers write there. A wrapper with its own copy of the options trains on with the old ones, silently.

    Broken by copied options, of which at most the learning rate is passed on: facebookresearch/fairscale#58,
    facebookresearch/fairscale#66.
    """
    kinds = [type(event) for event in scenario.program]
    trial.witnessed["hyper-parameters changed between steps"] += Step in kinds[: kinds.index(SetHyperparameters)]
    words = "A step does not use the hyper-parameters that were set."
    judge.values_equal(trial.run(scenario), trial.expected(scenario), words, of=("parameter", "state"))


def in_backward(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Windows of one or more micro-batches, each ending in a step of all parameters that frees gradients."""
    kinds = ((), ("momentum",), ("adam",), ("several steps",), ("several steps", "momentum"))
    more = ((), ("accumulation",)) if claims.accumulation else ((),)
    steady = replace(claims, freezing=False, joins=(), several_optimizers=False, drops_losses=False)
    drawn = st.one_of(*(exact_scenarios(steady, has=("step", *kind, *also)) for kind in kinds for also in more))
    return those_there_are(drawn.map(lambda scenario: _only_windows(scenario, claims)))


def _only_windows(scenario: Scenario, claims: Claims) -> Scenario | None:
    """The scenario's micro-batches with a step at the end of each window; None if the expectation is not known."""
    program: list[Event] = []
    for event in scenario.program:
        if isinstance(event, Backward):
            program += [replace(event, overflow=())]
        elif isinstance(event, Finish):
            program += [event, Step(), ZeroGrad()]
    try:
        windows = replace(scenario, program=tuple(program), masters=False, loss_scale=None)
    except ValueError:  # invalid without the events that were left out
        return None
    return None if beyond(claims, windows) or known(windows, claims) is None else windows


@law("P12", in_backward, needs=lambda claims: claims.steps_in_backward)
def test_a_backward_that_steps_uses_the_mean_of_all_micro_batches_once(trial: Trial, scenario: Scenario) -> None:
    """If the backward that synchronizes steps each parameter and frees its gradient, parameters are those of one step
    with the mean of all micro-batches since the last step. Other backwards step nothing.

    Why: a step that runs in a hook spares the memory of the gradients. The hook fires in each micro-batch, and only in
    the last one has a parameter all of its gradient.

    Broken by a step in each micro-batch: pytorch/pytorch#124523.
    """
    words = "A backward that steps does not leave what one step with the mean would."
    judge.values_equal(trial.run(scenario), trial.expected(scenario), words, of=("parameter",))


def with_several_optimizers(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with an optimizer for each group. All step, one does, or one after the other; with any feature."""
    plain = ("several optimizers",)
    return st.one_of(
        exact_scenarios(claims, has=plain),
        exact_scenarios(claims, has=(*plain, "adam")),
        exact_scenarios(claims, has=(*plain, "momentum")),
        exact_scenarios(claims, has=(*plain, "several steps")),
        with_any(replace(claims, joins=()), 2, has=plain),
    )


def sits_a_step_out(scenario: Scenario) -> bool:
    """True if some optimizers step and others do not."""
    of = [event.groups for _, event in scenario.events(Step)]
    return any(groups is not None and len(groups) < len(scenario.optimizers) for groups in of)


@law(
    "P12",
    with_several_optimizers,
    needs=lambda claims: claims.several_optimizers,
    witnesses={"an optimizer stepped and another did not": ONE_OF_TWO},
    shown_by=having("several optimizers"),
)
def test_each_of_several_optimizers_steps_its_own_parameters(trial: Trial, scenario: Scenario) -> None:
    """If groups of parameters have an optimizer each, a step of one changes only its own parameters. Parameters,
    gradients, state and step counters of the others stay for their own steps.

    Why: matrices and embeddings may have different optimizers, and a generator and its critic step in turn. Each
    optimizer knows only its own part of the model.

    Broken by one counter for steps of parts (deepspeedai/DeepSpeed#1823), and by waiting for every gradient of a
    backward (horovod/horovod#1417). Recipes: gradients freed after a step; a bucket published with old values of
    parameters that another optimizer has stepped.
    """
    run = trial.run(scenario)
    trial.witnessed["an optimizer stepped and another did not"] += sits_a_step_out(scenario)
    words = "Steps go wrong where groups of parameters have optimizers of their own."
    judge.values_equal(run, trial.expected(scenario), words)


def with_writes(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any feature in which the caller writes into parameters, between two steps or anywhere."""
    return st.one_of(
        exact_scenarios(claims, has=("write between steps",)),
        exact_scenarios(claims, has=("write between steps", "momentum")),
        exact_scenarios(claims, has=("write between steps", "adam")),
        with_any(replace(claims, joins=()), 2, has=("write",)),
    )


@law(
    "P12",
    with_writes,
    needs=lambda claims: claims.writes_weights and claims.masters != MASTERS,
    witnesses={"the caller wrote between two steps": WRITTEN},
    shown_by=having("write"),
    share=0.8,
)
def test_training_goes_on_from_what_the_caller_has_written_into_parameters(trial: Trial, scenario: Scenario) -> None:
    """Values that the caller writes into parameters, in place and without autograd, are there on every rank. The next
    forward reads them, and the next step changes them.

    Why: weights are clipped, averaged in, or loaded by hand after wrapping. An optimizer that steps a copy overwrites
    them.

    Broken by masters and shards of the optimizer that do not follow: NVIDIA/Megatron-LM#174, NVIDIA/Megatron-LM#5071,
    NovaSky-AI/SkyRL#2149, radixark/miles#2572.
    """
    run = trial.run(scenario)
    trial.witnessed["the caller wrote between two steps"] += FEATURES["write between steps"].occurs(scenario)
    judge.values_equal(run, trial.expected(scenario), "What the caller has written into parameters does not stay.")


def evaluated_around_each_step(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with evaluations at the start and after every step. No buffers are broadcast at each forward."""

    def evaluated(scenario: Scenario, first: Evaluate, then: Evaluate) -> Scenario:
        after = scenario.with_each(Step, lambda step: (step, then))
        return replace(after, program=(first, *after.program))

    drawn = exact_scenarios(claims.without_broadcasts(), has=("step",))
    return st.builds(evaluated, drawn, evaluations(claims), evaluations(claims))


def evaluates_after_a_step(scenario: Scenario) -> bool:
    """True if an evaluation follows a step, and no buffers are broadcast before it."""
    kinds = [type(event) for event in scenario.program]
    evaluated = Step in kinds and Evaluate in kinds[kinds.index(Step) :]
    return anything(scenario) and not scenario.broadcast_buffers and evaluated


@law(
    "P12",
    evaluated_around_each_step,
    needs=lambda claims: claims.evaluates,
    witnesses={"an evaluation after a step was seen to read parameters": EVALUATED},
    shown_by=evaluates_after_a_step,
    share=0.5,
)
def test_an_evaluation_reads_what_the_last_step_has_left(trial: Trial, scenario: Scenario) -> None:
    """A forward without autograd reads the parameters of the last step, bit for bit, on every rank.

    Why: its result selects models and stops runs. Correct training does not show that evaluations are correct. This law
    needs no oracle.

    Broken by reusing parameters that were gathered for an earlier evaluation, as FSDP1 and FSDP2 do
    (docs/findings). Recipes: a copy or cast that is used again; a wait for the step's messages only in
    forwards that train. No report of it is known.
    """
    run = trial.run(scenario)
    evaluated = run.observations[0]["evaluated"].values()
    constructed_once = not scenario.has(
        SaveAndLoad
    )  # so that parameters kept from an earlier evaluation are not dropped
    trial.witnessed["an evaluation after a step was seen to read parameters"] += constructed_once and all(
        read is not None for each in evaluated for read in each
    )
    judge.evaluations_equal(run, "An evaluation reads other parameters than the last step has left.")


def with_swaps(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any features, in which weights are swapped for an evaluation, often between steps."""
    steady = replace(claims.without_broadcasts(), joins=())
    return with_any(steady, 2, has=("swap weights",)) | with_any(steady, 1, has=("swap between steps",))


@law(
    "P12",
    with_swaps,
    needs=lambda claims: claims.swaps_weights and claims.evaluates,
    witnesses={"an evaluation with other weights was seen to read them": SWAPPED},
    shown_by=having("swap weights"),
)
def test_an_evaluation_with_other_weights_reads_these_and_leaves_no_trace(trial: Trial, scenario: Scenario) -> None:
    """An evaluation reads the weights that the caller has written in place of the model's. When these are back,
    training continues as if there had been no evaluation.

    Why: averages of the weights are evaluated in this way while a model trains, and the caller may write the
    parameters.

    Broken by a copy, or cast, whose validity is checked in the wrong place, and by writing a step's results into the
    parameters later. No report of it is known.
    """
    run = trial.run(scenario)
    read = [values for seen in run.observations for each in seen["swapped"].values() for values in each]
    trial.witnessed["an evaluation with other weights was seen to read them"] += any(each is not None for each in read)
    judge.swapped_are_read(run, "An evaluation does not read the weights that the caller has swapped in.")
    headline = "After an evaluation with other weights, which were swapped out again, training goes wrong."
    judge.values_equal(run, trial.expected(scenario), headline)
