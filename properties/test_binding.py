"""P15: each parameter that the model has now, exactly once."""

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import Backward, Duplicate, Finish, Load, Move, Replace, Save, SaveAndLoad, Step
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM, RENAMED, Claims
from lockstep.properties.events.backward import READ
from lockstep.properties.expected import is_exact
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import anything, having
from lockstep.properties.strategies.moments import altered
from lockstep.properties.strategies.several import with_losses
from lockstep.properties.strategies.variants import asking, replaced_again, trained_again
from lockstep.properties.trial import SENT, Trial

STOOD = "the wrapper told of parameters"
KEPT = "a hook of the caller's found a gradient"
COPIED = "a copy was evaluated after a later step"
ONE_BATCH = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
AROUND = altered(ONE_BATCH, (0,), direct=True)
HALF_READ = altered(ONE_BATCH, (0,), loss=READ[0])
MOVED = replace(ONE_BATCH, program=(Move(), *ONE_BATCH.program))
STEPPED = replace(ONE_BATCH, program=(*ONE_BATCH.program, Step()))


def with_frozen_parameters(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with a parameter that is frozen when it is wrapped."""
    return exact_scenarios(claims).filter(lambda scenario: not all(p.trainable for p in scenario.parameters))


@law(
    "P15",
    with_frozen_parameters,
    shown_by=lambda scenario: anything(scenario) and not all(p.trainable for p in scenario.parameters),
    share=0.05,
)
def test_frozen_parameters_stay_as_they_are(trial: Trial, scenario: Scenario) -> None:
    """Frozen parameters get no gradient though the loss depends on them. They do not move, and do not block the
    reduction of others.

    Why: a parameter that is not trained has nothing to average.

    Broken by registering parameters anew, which trains them, and by buckets that wait for them:
    pytorch/torchtitan#3885, facebookresearch/fairscale#721, pytorch/pytorch#14675.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Frozen parameters are not left alone.")


def with_freezing(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which parameters are frozen, and possibly trained again at the end.

    The end may freeze others instead, begin inside `no_sync`, or step. If claimed, it includes parameters that were
    frozen from the start.
    """
    train = partial(trained_again, everything=claims.unfreezing)
    again = [train, partial(train, instead=True)]
    again += [partial(train, local=True)] * (claims.accumulation and claims.silent_no_sync)
    ends = st.sampled_from((lambda scenario: scenario, *again))
    drawn = st.builds(
        lambda scenario, end: end(scenario), exact_scenarios(claims, has=("freeze",), enclosed=False), ends
    )
    with_state = exact_scenarios(claims, has=("freeze", "momentum"), enclosed=False)
    drawn |= with_state.map(partial(train, steps=True))
    return drawn.filter(lambda scenario: is_exact(scenario, claims))


def renamed(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which each replaced parameter gets a new name."""
    steady = replace(claims, reloads=False, copied_models=False, moved_parameters=False, joins=())
    kinds = [(), ("step",), ("several steps",), ("units",), *[("accumulation",)] * claims.accumulation]
    drawn = st.one_of(*(exact_scenarios(steady, has=("replace", *kind)) for kind in kinds))
    there = drawn.filter(lambda scenario: not scenario.has(Save, SaveAndLoad, Load))
    return there.map(lambda scenario: scenario.with_each(Replace, lambda event: (replace(event, renamed=True),)))


def replaced(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which parameters are replaced. In a third of them, one parameter is replaced repeatedly."""
    drawn = exact_scenarios(claims, has=("replace",))
    again = exact_scenarios(replace(claims, joins=()), has=("replace",), enclosed=False).map(replaced_again)
    return st.one_of(drawn, drawn, again.filter(lambda scenario: is_exact(scenario, claims)))


@law("P15", with_freezing, needs=lambda claims: claims.freezing, shown_by=having("freeze"), share=0.8)
def test_what_is_frozen_or_trained_again_is_followed(trial: Trial, scenario: Scenario) -> None:
    """After `requires_grad` changes, exactly the parameters that are then trained are synchronized.

    Why: fine-tuning freezes parameters for some steps.

    Broken by lists, dtypes and buckets that are made only once: pytorch/pytorch#186998, deepspeedai/DeepSpeed#1355.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "What is trained now is not what is synchronized.")


@law("P15", replaced, needs=lambda claims: bool(claims.replaced_parameters), shown_by=having("replace"), share=0.8)
def test_parameters_that_are_replaced_are_synchronized(trial: Trial, scenario: Scenario) -> None:
    """If new parameters replace those that the model had at wrapping, they are synchronized like these.

    Why: hooks and lists are bound to tensors, but a model is known by its names.

    Broken by assigning parameters after wrapping: pytorch/pytorch#12603, pytorch/pytorch#104336.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Parameters that were replaced are not synchronized.")


@law("P15", renamed, needs=lambda claims: claims.replaced_parameters == RENAMED)
def test_parameters_with_names_that_the_model_did_not_have_are_synchronized(trial: Trial, scenario: Scenario) -> None:
    """If a module gets new parameters after wrapping, under names that it did not have, their gradients are the mean
    over ranks like all others. Or every rank raises.

    Why: adapters for fine-tuning are often attached to a model that is already wrapped. A wrapper that knows parameters
    by name, or has listed them, leaves the new ones to each rank.

    Broken for adapters that are attached after sharding: huggingface/transformers#48873, hao-ai-lab/FastVideo#1666.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Parameters with new names are not synchronized.")


def with_ties(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with a tensor of two names. Half of those for stage 3 have units, which are gathered one by one."""
    tied = exact_scenarios(claims, has=("tied",))
    return tied | exact_scenarios(claims, has=("tied", "units")) if claims.stage == 3 else tied


@law("P15", with_ties, needs=lambda claims: claims.tied_parameters, shown_by=having("tied"), share=0.8)
def test_a_tensor_of_two_names_is_one(trial: Trial, scenario: Scenario) -> None:
    """The gradient of a tied parameter is the sum over its names, reduced once and divided once.

    Why: two names are still one tensor.

    Broken by two hooks, two slots, or a count of names: pytorch/pytorch#51929, NVIDIA/Megatron-LM#6164.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "A tensor of two names is not treated as one.")


def going_around(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any two features, in which some or all micro-batches outside `no_sync` bypass the wrapper.

    As far as claimed, they often have unused parameters, errors and accumulation.
    """

    def chosen(scenario: Scenario, which: int) -> Scenario:
        late = claims.equal_from != EQUAL_FROM[0]  # then the first forward must use the wrapper
        places = [
            at
            for at, event in scenario.events(Backward)
            if event.synchronize and not (late and scenario.standings[at].built)
        ]
        some = [place for batch, place in enumerate(places) if which >> batch & 1]
        return altered(scenario, some or places[:1], direct=True)

    # In a join, ranks without batches follow the wrapper's forwards.
    plain = replace(claims, accumulation=False, joins=())
    features = [*[("unused", "units")] * (claims.unused is not None), *[("raise",)] * claims.survives_errors]
    drawn = st.one_of(with_any(plain, 2), *(exact_scenarios(plain, has=has) for has in features))
    if claims.accumulation:
        drawn |= exact_scenarios(replace(claims, joins=()), has=("accumulation",))
    made = st.builds(chosen, drawn, st.integers(0, 255))
    return made.filter(lambda scenario: any(batch.direct for batch in scenario.microbatches))


@law(
    "P15",
    going_around,
    needs=lambda claims: claims.direct_forwards,
    witnesses={SENT: AROUND},
    shown_by=having("direct"),
)
def test_a_forward_of_the_wrapped_module_itself_counts_like_one_through_the_wrapper(
    trial: Trial, scenario: Scenario
) -> None:
    """If the caller calls the module instead of its wrapper, on all ranks, its gradients are synchronized too.

    Why: the module has the same parameters, and its methods and helpers often call it.

    Broken where the wrapper's forward prepares state that backward needs: Lightning-AI/pytorch-lightning#9237.
    """
    run, expected = trial.run_and_expect(scenario)
    judge.values_equal(run, expected, "Forwards around the wrapper do not count like those through it.")


def moving(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any features, in which the model moves, often between steps."""
    claims = replace(claims, joins=())
    return with_any(claims, 2, has=("move",)) | with_any(claims, 1, has=("move between steps",))


@law(
    "P15",
    moving,
    needs=lambda claims: claims.moved_parameters,
    witnesses={SENT: MOVED},
    shown_by=having("move"),
    share=0.8,
)
def test_a_model_whose_tensors_have_moved_is_synchronized_where_they_are(trial: Trial, scenario: Scenario) -> None:
    """If the model's parameters, gradients and buffers get new memory after wrapping, nothing else changes.

    Why: `.to(device)` keeps the parameters and moves their values, and the wrapper wraps parameters.

    Broken by views, buffers and addresses of the old memory: pytorch/pytorch#104336.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "What has moved to new memory is not synchronized there.")


def optimized(claims: Claims, when: str) -> st.SearchStrategy[Scenario]:
    """A scenario with a step and any feature, whose optimizer is made right before or after wrapping.

    It has no master weights, because a caller makes these from parameters that are equal on all ranks.
    """
    return asking(with_any(replace(claims, masters=False), 1, has=("step",)), makes_optimizer=when)


@law(
    "P15",
    partial(optimized, when="after"),
    needs=lambda claims: claims.stage is None,
    witnesses={SENT: replace(STEPPED, caller=Caller(makes_optimizer="after"))},
    shown_by=lambda scenario: scenario.caller.makes_optimizer == "after",
    share=0.3,
)
def test_an_optimizer_that_is_made_right_after_wrapping_steps_what_is_trained(trial: Trial, scenario: Scenario) -> None:
    """An optimizer that the caller makes from the model's parameters before the first forward steps the trained
    parameters.

    Why: most loops make their optimizer at that moment.

    Broken by making the parameters anew in the first call: pytorch/pytorch#132954,
    intelligent-machine-learning/dlrover#585.
    """
    headline = "What an optimizer is made of right after wrapping is not trained."
    judge.values_equal(*trial.run_and_expect(scenario), headline)


@law(
    "P15",
    partial(optimized, when="before"),
    needs=lambda claims: claims.optimizer_before,
    witnesses={SENT: replace(STEPPED, caller=Caller(makes_optimizer="before"))},
    shown_by=lambda scenario: scenario.caller.makes_optimizer == "before",
)
def test_an_optimizer_that_was_made_before_wrapping_steps_what_is_trained(trial: Trial, scenario: Scenario) -> None:
    """An optimizer that the caller makes from the model's parameters before wrapping steps the trained parameters.

    Why: some functions take a model with its optimizer and prepare both. The optimizer knows tensors, not names.

    Broken by new parameters in place of the model's: huggingface/accelerate#3256, and in the source of apex.
    """
    headline = "What an optimizer was made of before wrapping is not trained."
    judge.values_equal(*trial.run_and_expect(scenario), headline)


def with_hooks_on_what_is_there(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any features, and hooks that keep gradients.

    No parameter is replaced or trained later, because it would have no hook.
    """
    plain = replace(claims, freezing=False, replaced_parameters=False, joins=())
    return asking(with_any(plain, 2), keeps_gradients=True)


@law(
    "P15",
    with_hooks_on_what_is_there,
    needs=lambda claims: claims.final_in_hooks,
    witnesses={KEPT: replace(ONE_BATCH, caller=Caller(keeps_gradients=True))},
    shown_by=having("kept gradients"),
)
def test_a_hook_finds_the_final_gradient_once_it_has_accumulated(trial: Trial, scenario: Scenario) -> None:
    """A hook that the caller registers after wrapping, by `register_post_accumulate_grad_hook`, sees the same gradient
    as after the end of the synchronization.

    Why: optimizers that step in such hooks free each gradient at once. With a rank's own gradient they drive replicas
    apart.

    Broken by reducing later than these hooks run, as DDP does: kohya-ss/musubi-tuner#679. FSDP2 runs the hooks itself,
    in time.
    """
    run = trial.run(scenario)
    kept = [values for seen in run.observations for each in seen["kept"].values() for values in each]
    trial.witnessed[KEPT] += any(each is not None for each in kept)
    headline = "A hook of the caller's finds a gradient that is not final."
    judge.values_equal(run, trial.expected(scenario), headline)


def with_copies(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any features, in which the caller copies the model, and copies it again after a step."""
    steady = replace(claims.without_broadcasts(), joins=())
    return with_any(steady, 2, has=("duplicate around a step",))


@law(
    "P15",
    with_copies,
    needs=lambda claims: claims.copied_models,
    witnesses={COPIED: replace(STEPPED, program=(Duplicate(), *STEPPED.program, Duplicate(), *STEPPED.program))},
)
def test_a_copy_of_the_model_stays_what_it_was(trial: Trial, scenario: Scenario) -> None:
    """A deep copy of the model keeps the weights of its moment, even if it is evaluated after later steps. The model
    trains on as if there were no copy.

    Why: averages of the weights, teachers and target networks are kept in this way.

    Broken by hooks on the model that are copied along and still know the wrapper: pytorch/pytorch#82070,
    pytorch/pytorch#149138.
    """
    run, last = trial.run(scenario), scenario.places(Duplicate)[-1]
    read = [values for seen in run.observations for values in seen["duplicates"][last][0]]
    trial.witnessed[COPIED] += any(each is not None for each in read)
    judge.duplicates_equal(run, "A copy of the model is not what the model was when it was made.")
    judge.values_equal(run, trial.expected(scenario), "A copy of the model changes what the model becomes.")


def standing_for_the_model(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with steps, one group of parameters and no master weights.

    They are often saved and loaded, have buffers, or train frozen parameters again.
    """
    plain = replace(claims, masters=False, several_optimizers=False, joins=())
    features: list[tuple[str, ...]] = [("step",), ("go on",), *[("go back",)] * claims.reloads]
    features += [("save and load", "buffers")] * bool(claims.buffers)
    drawn = st.one_of(*(with_any(plain, 1, has=has) for has in features))
    if claims.freezing:
        again = partial(trained_again, everything=claims.unfreezing, steps=True)
        frozen = exact_scenarios(plain, has=("freeze", "step"), enclosed=False).map(again)
        drawn |= frozen.filter(lambda scenario: is_exact(scenario, claims))
    return asking(drawn, asks_the_wrapper=True)


@law(
    "P15",
    standing_for_the_model,
    needs=lambda claims: claims.stands_for_model,
    witnesses=dict.fromkeys((SENT, STOOD), replace(STEPPED, caller=Caller(asks_the_wrapper=True))),
    shown_by=having("asked wrapper"),
    share=0.5,
)
def test_the_wrapper_stands_for_the_model_where_it_is_asked_for_parameters_and_state(
    trial: Trial, scenario: Scenario
) -> None:
    """An optimizer made from the wrapper's own `parameters()` trains the model. The wrapper loads all that its own
    `state_dict()` has saved.

    Why: a training loop knows only the wrapper.

    Broken by names that differ between saving and loading, by copies in place of the parameters, and by missing
    entries: pytorch/examples#1029, sgl-project/sglang#19688.
    """
    run = trial.run(scenario)
    trial.witnessed[STOOD] += all(seen["stood"] for seen in run.observations)
    judge.values_equal(run, trial.expected(scenario), "The wrapper's own parameters or state are not the model's.")


def beside_another(claims: Claims, how: str = "beside") -> st.SearchStrategy[Scenario]:
    """A scenario with any two features, and another model before or after this one.

    ``how``: "beside" takes turns, "joint" shares the loss.
    """
    drawn = with_any(replace(claims, joins=()), 2)
    return st.one_of(*(asking(drawn, **{how: where}) for where in ("after", "before")))


@law(
    "P15",
    beside_another,
    needs=lambda claims: claims.other_models,
    witnesses={SENT: replace(ONE_BATCH, caller=Caller(beside="after"))},
    shown_by=lambda scenario: bool(scenario.caller.beside),
)
def test_a_model_trained_beside_another_is_as_if_it_were_alone(trial: Trial, scenario: Scenario) -> None:
    """Two models of one class, each wrapped and trained in turn on all ranks, do not affect each other.

    Why: a generator has its discriminator, and an actor its critic.

    Broken by state that is kept per class or process, and by names that no longer mean one parameter:
    deepspeedai/DeepSpeed#4923, horovod/horovod#2559.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Another model beside it changes what this one becomes.")


def sharing_losses(claims: Claims) -> st.SearchStrategy[Scenario]:
    """As `beside_another`, but all ranks use all trainable parameters.

    Otherwise they may send unused gradients after backward, of the one model on this rank and of the other on that.
    """
    return beside_another(replace(claims, unused=None), "joint")


@law(
    "P15",
    sharing_losses,
    needs=lambda claims: claims.other_models,
    witnesses={SENT: replace(ONE_BATCH, caller=Caller(joint="after"))},
    shown_by=lambda scenario: bool(scenario.caller.joint),
)
def test_models_that_share_a_loss_are_each_as_if_alone(trial: Trial, scenario: Scenario) -> None:
    """If the losses of two wrapped models are added and run backward together, each model gets the mean of its own
    gradients.

    Why: two towers share a contrastive loss, and an encoder shares a loss with its decoder.

    Broken by keeping the state of a backward per process, and by actions around the backward of only one model:
    deepspeedai/DeepSpeed#7018.
    """
    headline = "A loss shared with another model changes what this one becomes."
    judge.values_equal(*trial.run_and_expect(scenario), headline)


def reading_outside(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with a parameter that is read outside its module, once, or before and after it has changed."""
    return st.one_of(*(exact_scenarios(claims, has=("outside", *more)) for more in ((), ("several steps",))))


@law("P15", reading_outside, needs=lambda claims: claims.outside_reads, shown_by=having("outside"), share=0.8)
def test_a_parameter_read_outside_its_module_is_like_any_other(trial: Trial, scenario: Scenario) -> None:
    """A parameter that another module's forward reads, without a call of its own module, is synchronized like others.

    Why: a parameter is an attribute that any code may read. An output head reads the embedding's weight.

    Broken by gathering only for modules that are called: NVIDIA/Megatron-LM#4467. Broken by a placeholder in place of
    the parameter: deepspeedai/DeepSpeed#930.
    """
    judge.values_equal(
        *trial.run_and_expect(scenario), "A parameter that another module reads is not treated as its own."
    )


def with_halves(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios in which the caller computes one half of the loss of a micro-batch, or of all of them, itself.

    They have any two features, or accumulation. The half is computed after the forward or before it. The latter is left
    out if only the first forward makes ranks equal.
    """
    return with_losses(claims, READ if claims.equal_from == EQUAL_FROM[0] else READ[:1])


@law(
    "P15",
    with_halves,
    needs=lambda claims: claims.losses_read,
    witnesses={SENT: HALF_READ},
    shown_by=having("read parameters"),
)
def test_a_loss_may_read_parameters_itself(trial: Trial, scenario: Scenario) -> None:
    """If the caller computes half of a loss directly from parameters, before or after the forward of the other half,
    gradients are those of the whole loss.

    Why: a penalty on weights does so, and a fused loss that takes the head's weight instead of logits.

    Broken where parameters are whole only in forwards: huggingface/trl#6372. Recipes: other tensors are trained in
    their place; the mean is taken on the way back into a forward.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "What a loss reads itself is not like what a forward reads.")
