"""P12: uses of a sharded optimizer beside steps, and the classes of plain optimizers that it shards."""

from dataclasses import replace
from math import prod

from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.events import (
    Backward,
    Clip,
    Finish,
    Freeze,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    ZeroGrad,
)
from lockstep.oracle.model import Group, Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import SAVED_BY, Claims
from lockstep.properties.expected import known
from lockstep.properties.implementations import Implementation
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios, those_there_are
from lockstep.properties.strategies.within import beyond
from lockstep.properties.test_sharding import only_steps_round
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused

_PAIR = (Parameter((1,)), Parameter((1,)))
_WINDOW = (ZeroGrad(), Backward(((0, 1), (0, 1))), Finish(), Step())
_FIRST_ALONE = (Backward(((0,), (0,))), Finish(), Step())
TWO_STEPS = Scenario(2, _PAIR, _WINDOW * 2, optimizer="Adam")
ADDED_AFTER_A_STEP = Scenario(2, _PAIR, (*_FIRST_ALONE, *_WINDOW), groups=(Group((1,)),)), 6
RATE = SetHyperparameters(Hyperparameters(learning_rate=0.25))
SCHEDULED = Scenario(2, _PAIR, (*_WINDOW, RATE, *_WINDOW))
AFTER = "a group was added after a step"
BETWEEN = "a learning rate was set between steps"
# An implementation in which every rank steps every parameter with the plain optimizer.
PLAIN = "lockstep.properties.ranks.optimizers:plain"


def stepping(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any steps, some of them with several."""
    kinds = ((), ("momentum",), ("adam",), ("several steps", "adam"), ("groups",))
    return st.one_of(*(exact_scenarios(claims, has=("step", *kind)) for kind in kinds))


@law("P12", stepping, needs=lambda claims: claims.closures)
def test_a_step_runs_its_closure_once_and_returns_the_loss(trial: Trial, scenario: Scenario) -> None:
    """If a step is given a closure, which runs forward and backward, every rank runs it once, with autograd. The step
    uses the gradients that it leaves, and returns its loss.

    Why: a closure contains the collectives of a backward, so a rank that skips it leaves the others waiting. Callers
    log the loss, and stop by it.

    Recipes: a rank that owns nothing returns at once; gradients are read before the closure runs; the loss is dropped.
    No report of it is known.
    """
    run = trial.run(scenario, closures=True)
    judge.values_equal(run, trial.expected(scenario), "A step that is given a closure goes wrong.")


def takes_missing_gradients(claims: Claims) -> bool:
    """True if means are computed before the step, and some ranks may lack one."""
    there = claims.unused == "untouched" and claims.most_ranks > 1
    return claims.missing_gradients and there and not claims.averages_in_step


def lacking_a_mean(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with steps before which a rank has no gradient of a parameter for which another rank has one."""
    kinds = ((), ("momentum",), ("adam",), ("several steps",), ("several steps", "adam"))
    # If a rank lacks a mean, no further gradient can be accumulated on it.
    claims = replace(claims, reloads=False, adds_to_averages=False)
    drawn = st.one_of(*(exact_scenarios(claims, has=("unused", "step", *kind)) for kind in kinds))
    return drawn.filter(lambda scenario: scenario.loss_scale is None and lacks_a_mean(scenario))


def lacks_a_mean(scenario: Scenario) -> bool:
    """True if at a step one rank has used a parameter since gradients were dropped, and another rank has not.

    False if a norm is computed, because it would differ between ranks.
    """
    if scenario.has(Clip, Save, SaveAndLoad):
        return False
    used: list[set[int]] = [set() for _ in range(scenario.world_size)]
    for event in scenario.program:
        if isinstance(event, Backward):
            for mine, order in zip(used, event.orders, strict=True):
                mine.update(map(scenario.tensor, order))
        elif isinstance(event, ZeroGrad) and event.set_to_none:
            used = [set() for _ in used]
        elif isinstance(event, Step) and any(mine != used[0] for mine in used):
            return True
    return False


@law(
    "P12",
    lacking_a_mean,
    needs=takes_missing_gradients,
)
def test_a_mean_that_some_ranks_lack_is_stepped_like_any_other(trial: Trial, scenario: Scenario) -> None:
    """If the averaged gradient of a parameter is None on some ranks, the step uses it as if every rank had it. Or it
    raises on every rank, before any parameter changes.

    Why: some wrappers give a mean only to ranks that used the parameter. The rank that owns the parameter may be
    another one, and ranks that decide by their own gradients decide differently.

    Broken by ranks without gradients that stay away from the exchange of parameters: facebookresearch/optimizers#149.
    Recipe: an owner without a gradient loses the update.
    """
    run = trial.run(scenario, withheld=True)
    words = "A step goes wrong where some ranks lack an averaged gradient."
    judge.values_equal(run, trial.expected(scenario), words, of=("parameter",))


def adds_late(claims: Claims) -> bool:
    """True if a group may be added late and stay unused, and no rank needs a parameter of the first group."""
    return claims.adds_groups and claims.unused == "untouched" and not claims.parameters_per_rank


def with_a_late_group(claims: Claims) -> st.SearchStrategy[tuple[Scenario, int]]:
    """Scenarios with a group that no rank uses before its first step, and that step."""
    kinds = ((), ("adam",), ("momentum",), ("several steps",), ("several steps", "adam"), ("set hyperparameters",))
    claims = replace(claims, several_optimizers=False, reloads=False, freezing=False, unfreezing=False)
    drawn = st.one_of(*(exact_scenarios(claims, has=("step", "groups", *kind)) for kind in kinds))
    made = st.builds(lambda scenario, late: late_group(scenario, late, claims), drawn, st.booleans())
    return made.filter(bool)  # type: ignore[return-value]  # the scenarios that are not None


def late_group(scenario: Scenario, late: bool, claims: Claims) -> tuple[Scenario, int] | None:
    """The scenario, and the place of the step by which the last group must be added.

    ``late``: the last group is not used before the first step. None if there is no such step, or if no other group
    could be stepped before.
    """
    members = {*scenario.names(*scenario.all_groups[-1].parameters)}
    kinds = [type(event) for event in scenario.program]
    if not members or not scenario.all_groups[0].parameters or {*kinds} & {Freeze}:
        return None
    if any(kind.__name__ in ("SaveAndLoad", "Save", "Load") for kind in kinds):
        return None
    program = [
        replace(event, orders=tuple(tuple(p for p in order if p not in members) for order in event.orders))
        if late and isinstance(event, Backward) and place < kinds.index(Step)
        else event
        for place, event in enumerate(scenario.program)
    ]
    uses = (
        at for at, event in enumerate(program) if isinstance(event, Backward) and members & {*sum(event.orders, ())}
    )
    first = next(uses, None)
    if first is None or Step not in kinds[first:]:
        return None
    try:
        other = replace(scenario, program=tuple(program))
    except ValueError:
        return None
    return None if beyond(claims, other) or known(other, claims) is None else (other, kinds.index(Step, first))


@law(
    "P12",
    with_a_late_group,
    needs=adds_late,
    witnesses={AFTER: ADDED_AFTER_A_STEP},
)
def test_a_group_of_parameters_that_is_added_later_is_stepped_like_the_others(
    trial: Trial, drawn: tuple[Scenario, int]
) -> None:
    """Parameters added by `add_param_group`, before the first step or later, are stepped from then on as if the
    optimizer had been made with them. They have their own options, on every rank.

    Why: layers that are unfrozen one by one are trained in this way. A sharded optimizer must distribute the new
    parameters too, and send them to all ranks.

    Recipes: a group that the inner optimizer does not get, a group that only some rank steps, new parameters that are
    not broadcast. No report of it is known.
    """
    scenario, place = drawn
    trial.witnessed[AFTER] += Step in map(type, scenario.program[:place])
    run = trial.run(scenario, added=place)
    judge.values_equal(run, trial.expected(scenario), "Steps go wrong where a group of parameters was added later.")


def with_rates_set(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios that set learning rates before and between steps, and no other options."""
    claims = replace(claims, several_optimizers=False, reloads=False)
    kinds = ((), ("several steps",), ("several steps", "momentum"), ("groups",))
    drawn = st.one_of(*(exact_scenarios(claims, has=("set hyperparameters", *kind)) for kind in kinds))
    return those_there_are(drawn.map(lambda scenario: rates_alone(scenario, claims)))


def rates_alone(scenario: Scenario, claims: Claims) -> Scenario | None:
    """The scenario with only a learning rate in each event that sets options; None if its expectation is not known."""

    def rate(event: SetHyperparameters) -> SetHyperparameters:
        return replace(event, values=Hyperparameters(learning_rate=event.values.learning_rate or 0.25))

    program = tuple(rate(event) if isinstance(event, SetHyperparameters) else event for event in scenario.program)
    if any(type(event).__name__ in ("SaveAndLoad", "Load") for event in program):
        return None
    other = replace(scenario, program=program)
    return None if known(other, claims) is None else other


@law("P12", with_rates_set, needs=lambda claims: claims.schedulers, witnesses={BETWEEN: SCHEDULED})
def test_a_scheduler_sets_the_learning_rates_of_the_next_step(trial: Trial, scenario: Scenario) -> None:
    """A torch scheduler made for the optimizer sets its learning rates, and the next step uses them.

    Why: nearly every learning rate is set in this way. A scheduler writes into the groups of its optimizer, and
    replaces that optimizer's `step` by its own.

    Broken where another optimizer steps, with groups of its own: facebookresearch/fairscale#58.
    """
    kinds = [type(event) for event in scenario.program]
    trial.witnessed[BETWEEN] += Step in kinds[: kinds.index(SetHyperparameters)]
    run = trial.run(scenario, scheduled=True)
    judge.values_equal(
        run, trial.expected(scenario), "A step does not have the learning rate that a scheduler has set."
    )


def of_any_class(claims: Claims) -> st.SearchStrategy[tuple[Scenario, str]]:
    """Scenarios with exact gradients that do not depend on parameters, and a class. Half of them have only matrices."""
    kinds = [(), ("several steps",), ("momentum",), ("adam",), ("groups",), ("set hyperparameters",)]
    kinds += [("go on",)] * claims.saves_state + [("several steps", "unused")] * (claims.unused == "untouched")
    drawn = st.one_of(*(exact_scenarios(replace(claims, writes_weights=False), has=("step", *kind)) for kind in kinds))
    linear = drawn.filter(lambda scenario: scenario.probe == "linear" and only_steps_round(scenario, claims))
    shaped = st.builds(lambda scenario, whether: of_matrices(scenario) if whether else scenario, linear, st.booleans())
    return st.tuples(shaped, st.sampled_from(claims.optimizers))


def of_matrices(scenario: Scenario) -> Scenario:
    """The scenario with parameters in two dimensions, because some optimizers take no others."""

    def matrix(parameter: Parameter) -> Parameter:
        shape = (
            parameter.shape if parameter.layout != "contiguous" else (prod(parameter.shape[:-1]), *parameter.shape[-1:])
        )
        return replace(parameter, shape=(*shape, *(1,) * (2 - len(shape))))

    return replace(scenario, parameters=tuple(map(matrix, scenario.parameters)))


@law("P12", of_any_class, needs=lambda claims: bool(claims.optimizers))
def test_steps_of_any_claimed_class_have_the_bits_of_the_plain_optimizer(
    trial: Trial, drawn: tuple[Scenario, str]
) -> None:
    """For each claimed class, parameters after every step have the bits that the plain optimizer of that class gives in
    one process, on the same gradients, with the same options.

    Why: distributing whole parameters changes no arithmetic. Distributing elements changes none for optimizers that
    work element by element. An optimizer that uses whole matrices, rows or columns, as Muon and Adafactor do, computes
    something else on a part of a matrix.

    Recipes: matrices cut into flat shards, options that do not reach every rank, a step of every rank with a share of
    the norm. No report of it is known.
    """
    scenario, name = drawn
    claims = replace(trial.claims, averages_in_step=False, saved_by=SAVED_BY[0])
    try:
        whole = replace(trial, implementation=Implementation(PLAIN, claims)).run(scenario, optimizer=name)
    except (LawBroken, Refused):
        raise UnsatisfiedAssumption("the plain class takes no such parameters, or no such options") from None
    judge.runs_equal(
        trial.run(scenario, optimizer=name), whole, f"Steps are not those of the plain {name.replace(':', '.')}."
    )
