"""P11: saving, loading and continuing gives the same as an uninterrupted run."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Event, Finish, Freeze, Load, Raise, Save, SaveAndLoad, Step, ZeroGrad
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import Inside
from lockstep.properties.claims import EQUAL_FROM, Claims
from lockstep.properties.expected import expect, known
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.part import Part, as_text
from lockstep.properties.strategies import exact_scenarios, those_there_are
from lockstep.properties.strategies.features import FEATURES, having
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial


def saving(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios that save and load somewhere, or that save state and use it afterwards."""
    features: list[tuple[str, ...]] = [("save and load",), ("go on", "momentum"), ("go on", "adam")]
    features += [("go on", "momentum", "groups")]
    masters = FEATURES["masters"].claimed(claims)
    features += [("go on", "masters")] * masters
    features += [("go on", "masters", "replicas")] * (masters and claims.replicas)
    return st.one_of(*(exact_scenarios(claims, has=has) for has in features))


def loading_weights_alone(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with master weights that load weights alone and step afterwards, also with several optimizers."""
    drawn = exact_scenarios(claims, has=("save and load", "masters", "step"))
    if claims.several_optimizers:
        drawn |= exact_scenarios(claims, has=("go on", "masters", "several optimizers"))
    return drawn.map(weights_alone).filter(lambda scenario: known(scenario, claims) is not None)


def weights_alone(scenario: Scenario) -> Scenario:
    """The scenario with weights as the only loaded state."""
    return scenario.with_each(SaveAndLoad, lambda _: (SaveAndLoad(False),))


def between_worlds(claims: Claims) -> st.SearchStrategy[tuple[Scenario, int, Scenario]]:
    """A scenario, the place of a SaveAndLoad in it, and the scenario with its samples on another number of ranks.

    Buffers are left out, because each rank has its own.
    """
    scenarios = saving(replace(claims, buffers=None)).filter(lambda scenario: bool(moves(scenario, claims)))
    return scenarios.flatmap(lambda scenario: st.sampled_from(moves(scenario, claims)))


def moves(scenario: Scenario, claims: Claims) -> list[tuple[Scenario, int, Scenario]]:
    """All ways to save the program on one number of ranks and load it on another, with the same samples.

    The expectations up to the save must be equal. Sums over another number of ranks may round otherwise.
    """
    worlds = [
        (each, told) for size in range(1, claims.most_ranks + 1) for each, told in on_ranks(scenario, size, claims)
    ]
    places = scenario.places(SaveAndLoad)
    return [
        (one, place, other)
        for place in places
        for one, mine in worlds
        for other, theirs in worlds
        if one is not other and knows_the_same(mine, theirs, place)
    ]


def on_ranks(scenario: Scenario, size: int, claims: Claims) -> list[tuple[Scenario, Expectation]]:
    """The same samples on so many ranks. Empty if they cannot be shared evenly, or if the expectation is not known."""
    if scenario.samples % size:
        return []
    try:
        elsewhere = scenario.on_ranks(size)
        if beyond(claims, elsewhere):
            return []
        return [(elsewhere, expect(elsewhere, claims))]
    except (ValueError, Inexact):
        return []


def knows_the_same(one: Expectation, other: Expectation, place: int) -> bool:
    """True if two expectations have the same bits or bounds for all parameters and states up to that event."""
    for mine, theirs in ((one.parameters, other.parameters), (one.states, other.states)):
        for event in (event for event in mine if event <= place):
            if [bounds(each) for each in mine[event]] != [bounds(each) for each in theirs[event]]:
                return False
    return True


def bounds(told: Any) -> Any:
    """A value, an interval, or a state by name in a form that can be compared."""
    if isinstance(told, Mapping):
        return {name: bounds(value) for name, value in told.items()}
    if isinstance(told, Inside):
        return told.low.tobytes(), told.high.tobytes()
    return None if told is None else told.tobytes()


def saving_somewhere(claims: Claims) -> st.SearchStrategy[tuple[Scenario, int]]:
    """A scenario with a step, or with several steps and state, and a place in it where nothing is in flight."""
    scenarios = st.one_of(*(exact_scenarios(claims, has=has) for has in (("step",), ("adam", "several steps"))))
    return scenarios.flatmap(
        lambda scenario: st.tuples(st.just(scenario), st.sampled_from(quiet_places(scenario, claims)))
    )


def quiet_places(scenario: Scenario, claims: Claims) -> list[int]:
    """The places before any event except a Finish, and after the last event, but not before ranks are equal."""
    places = [place for place, standing in enumerate(scenario.standings) if not standing.unfinished]
    return places if claims.equal_from == EQUAL_FROM[0] else places[1:]


def last_first(scenario: Scenario) -> Scenario:
    """The scenario with parameters registered in reverse order, so that names are not sorted.

    State that is saved by name must be loaded by name.
    """
    order = tuple(range(len(scenario.parameters)))[::-1]
    return replace(scenario, registered=order if len(order) > 1 else ())


def during(expected: Expectation, begin: int, end: int) -> Expectation:
    """The expectation for the events from ``begin`` to before ``end``."""
    kept: dict[str, Any] = {}
    for each in fields(expected):
        held = getattr(expected, each.name)
        if isinstance(held, Mapping):
            kept[each.name] = {place: value for place, value in held.items() if begin <= place < end}
    return replace(expected, **kept)


@law(
    "P11",
    saving,
    needs=lambda claims: claims.saves_state,
    made_of=lambda _, scenario: scenario if not scenario.registered and having("save and load")(scenario) else None,
    share=0.5,
)
def test_saving_loading_and_going_on_equals_a_run_that_was_not_interrupted(trial: Trial, scenario: Scenario) -> None:
    """If each rank saves, builds everything anew and loads, parameters and optimizer state are those of an
    uninterrupted run.

    Why: a checkpoint is all that remains of a run. State that is missing in it, or comes back in another place, is
    wrong from then on.

    Broken by states restored by position, by interleaved groups, by missing hyper-parameters: pytorch/xla#9224,
    facebookresearch/fairscale#483, horovod/horovod#526.
    """
    run = trial.run(last_first(scenario))
    judge.values_equal(run, trial.expected(scenario), "A run that was saved and loaded goes on wrong.")


@law("P11", between_worlds, needs=lambda claims: claims.changes_ranks)
def test_a_state_saved_on_n_ranks_goes_on_on_any_other_number(
    trial: Trial, move: tuple[Scenario, int, Scenario]
) -> None:
    """If a world of one size saves, and a world of another size loads and trains on with the same samples, the result
    is that of one uninterrupted run.

    Why: a state belongs to the model, not to the way it was sharded. So it contains no padding, and no order of ranks
    or names.

    Broken by padding that depends on the number of ranks, by merging states in arbitrary order, by a world of one:
    deepspeedai/DeepSpeed#5105, huggingface/nanotron#37, pytorch/pytorch#107185.
    """
    one, place, other = move
    before = trial.run(last_first(one), part=Part(end=place, saves=(place,)))
    judge.values_equal(before, during(trial.expected(one), 0, place), "The run is wrong before it is saved.")
    file = as_text(before.observations[0]["saved"])
    after = trial.run(last_first(other), part=Part(begin=place, file=file))
    expected = during(trial.expected(other), place, len(other.program))
    saved = f"Saved on {one.world_size} rank{'s' * (one.world_size > 1)}"
    judge.values_equal(after, expected, f"{saved} and loaded here, the run goes on wrong.")


@law("P11", loading_weights_alone, needs=lambda claims: bool(claims.masters))
def test_loading_weights_alone_makes_the_masters_follow(trial: Trial, scenario: Scenario) -> None:
    """If only weights are loaded, training continues from them: float32 masters are made from the loaded weights, and
    the optimizer starts afresh.

    Why: the next step copies the masters over the weights. Old masters undo the loading.

    Broken by not refreshing the masters: hpcaitech/ColossalAI#4618, NovaSky-AI/SkyRL#2149, NVIDIA/Megatron-LM#5071.
    """
    judge.values_equal(
        trial.run(scenario), trial.expected(scenario), "Loaded weights are not what training goes on from."
    )


def going_back(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios that save, step, load the saved state, and train on."""
    features = [("go back",), *(("go back", other) for other in ("momentum", "adam", "groups"))]
    masters = FEATURES["masters"].claimed(claims)
    features += [("go back", "masters")] * masters
    features += [("go back", "freeze")] * claims.freezing
    features += [("evaluate, go back", "quadratic")] * claims.evaluates
    plain = (exact_scenarios(claims, has=has) for has in features)
    more: list[tuple[str, ...]] = [("step", "adam", "momentum"), ("save", "quadratic", "momentum")]
    more += [("drop", "quadratic", "momentum")] * (claims.accumulation and claims.drops_windows)
    more += [("raise", "quadratic", "momentum")] * claims.survives_errors
    more += [("thaw", "momentum"), *[("thaw", "masters")] * masters] * claims.freezing
    return st.one_of(*plain, *(with_more(claims, *each) for each in more))


def with_more(claims: Claims, more: str, *kinds: str) -> st.SearchStrategy[Scenario]:
    """Scenarios that go back, with something more. ``kinds``: further features, one of which is drawn.

    The values of ``more``:

        step    a step before the Save, so that there is state to save
        drop    a window that is dropped right before the Load
        raise   an error right before the Load
        save    saving everything right after the Load
        thaw    a parameter that is frozen right before the Load and trained again right after it
    """

    def those(scenario: Scenario) -> Scenario | None:
        types = list(map(type, scenario.program))
        place = types.index(Save) if more == "step" else types.index(Load, types.index(Step))
        batch = scenario.microbatches[scenario.batch(place)]
        window = (Backward(batch.orders), Finish(), Step(), ZeroGrad())
        dropped = (Backward(batch.orders, False), ZeroGrad())
        kept = {"step": window, "drop": dropped, "raise": (Raise("backward"),)}
        before: tuple[Event, ...] = kept.get(more, ())
        after = (SaveAndLoad(),) * (more == "save")
        rest = scenario.program[place + 1 :]
        if more == "thaw":
            last = scenario.tensors[-1]
            before, rest = (ZeroGrad(), Freeze((last,))), (Freeze((last,), frozen=False), *window)
        program = (*scenario.program[:place], *before, scenario.program[place], *after, *rest)
        try:
            other = replace(scenario, program=program)
        except ValueError:  # broadcast buffers, or a parameter that was frozen before
            return None
        return None if beyond(claims, other) or known(other, claims) is None else other

    going = st.one_of(*(exact_scenarios(claims, has=("go back", other)) for other in kinds))
    return those_there_are(going.map(those))


@law("P11", going_back, needs=lambda claims: claims.reloads, shown_by=having("go back"), share=0.8)
def test_going_back_to_what_was_saved_undoes_what_came_since(trial: Trial, scenario: Scenario) -> None:
    """Loading a checkpoint into a model and optimizer that have trained on restores all of their state, and training
    continues from there.

    Why: runs return to the last good loss, or continue with their best model, without building anything anew.

    Broken by parameters that stay gathered, and by masters and states that stay: pytorch/pytorch#117421,
    deepspeedai/DeepSpeed#1612, deepspeedai/DeepSpeed#762.
    """
    judge.values_equal(trial.run(scenario), trial.expected(scenario), "Going back does not lead to what was saved.")


def saved_once(claims: Claims, scenario: Scenario) -> tuple[Scenario, int] | None:
    """A scenario of the general draw with a step, and the last place at which it can be saved."""
    places = quiet_places(scenario, claims) if having("step")(scenario) else []
    return (scenario, places[-1]) if places else None


@law("P11", saving_somewhere, made_of=saved_once, share=0.3)
def test_saving_changes_nothing(trial: Trial, drawn: tuple[Scenario, int]) -> None:
    """Saving a state at any moment leaves the run unchanged, even before the first step and between micro-batches.

    Why: reading a state must not change it.

    Broken by taking a step with zero gradients in order to have a state to save, which counts as a step:
    horovod/horovod#2805, NVIDIA/Megatron-LM#5976.
    """
    scenario, place = drawn
    run = trial.run(scenario, part=Part(saves=(place,)))
    judge.values_equal(run, trial.expected(scenario), f"Saving before event {place} changes the run.")
