"""P10: sharded training gives the same results as unsharded training, and really shards."""

from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Finish, Raise, Save, SaveAndLoad, Step, ZeroGrad
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import Inside
from lockstep.properties.claims import Claims
from lockstep.properties.expected import known
from lockstep.properties.implementations import Implementation
from lockstep.properties.judging import judge, memory
from lockstep.properties.judging.fair_share import fair_shares
from lockstep.properties.judging.gathered import ledgers, moments
from lockstep.properties.judging.memory import WEIGHED, WEIGHING
from lockstep.properties.judging.slices import held_between
from lockstep.properties.law import law
from lockstep.properties.part import Part
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import FEATURES, having
from lockstep.properties.trial import Trial

T = TypeVar("T")
SHARED_OUT = "state of the optimizer was shared out"
UNSHARDED = "lockstep.impls.static_buckets:StaticBuckets"
# There is one rank more than elements, so it owns nothing.
_ITERATION = (Backward(((0,),) * 4), Finish(), Step(), ZeroGrad())
OWNS_NOTHING = Scenario(4, (Parameter((3,)),), _ITERATION * 2, optimizer="Adam")
_IN_TURN = Backward(((0, 1),) * 2)
TWO_UNITS = Scenario(2, (Parameter((3,)),) * 2, (_IN_TURN, Finish(), Step()), units=((0,), (1,)))


def is_sharded(claims: Claims) -> bool:
    """True if the stage shards something, that is, from ZeRO-1 on."""
    return claims.stage is not None and claims.stage >= 1


def of_several_steps(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with steps that build on earlier ones, and with features for which shards may behave unlike full
    tensors.
    """
    kinds = [(), ("adam",), ("set hyperparameters",)]
    kinds += [("unused", "zero grad")] if claims.unused else []
    kinds += [("units", "unused") if claims.unused else ("units",)] if claims.stage == 3 else []
    kinds += [("replicas",)] if claims.replicas else []
    kinds += [("16 bits", "masters")] if claims.masters and claims.sixteen_bits else []
    return st.one_of(*(exact_scenarios(claims, has=("several steps", *kind)) for kind in kinds))


def keeps_state(expected: Expectation) -> bool:
    """True if the optimizer keeps an array for some parameter, which can be sharded."""
    return any(set(state) - {"step"} for states in expected.states.values() for state in states)


def has_idle_rank(scenario: Scenario) -> bool:
    """True if a tensor has fewer elements than there are ranks in a shard group."""
    return any(parameter.count < scenario.world_size // scenario.replicas for parameter in scenario.parameters)


@law(
    "P10",
    of_several_steps,
    needs=is_sharded,
    witnesses={"a tensor had fewer elements than there are ranks": OWNS_NOTHING},
    shown_by=having("several steps"),
    share=0.8,
)
def test_steps_of_shards_are_steps_of_the_whole(trial: Trial, scenario: Scenario) -> None:
    """Parameters and optimizer state after every step are those of one process, whichever rank owns which elements.

    Why: the optimizers work element by element, so sharding changes nothing. Options and their changes, step counts and
    decay reach every shard.

    Broken by options that do not reach the shards' optimizer, by a step that only creates state, and by empty shards:
    facebookresearch/fairscale#58, NVIDIA/Megatron-LM#5976, NVIDIA/TransformerEngine#1986.
    """
    trial.witnessed["a tensor had fewer elements than there are ranks"] += has_idle_rank(scenario)
    expected = trial.expected(scenario)
    judge.values_equal(trial.run(scenario), expected, "Steps of shards are not steps of the whole.")


def between_looks(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with several steps, with features that act between two of them, or with any feature."""
    kinds = [(), ("clip",), ("loss scale",)]
    # Units are called in any order, and stale values show.
    kinds += [("units", "quadratic")] if claims.stage == 3 else []
    usual = (exact_scenarios(claims, has=("several steps", *more)) for more in kinds)
    return st.one_of(*usual, with_any(claims, 1, has=("several steps",)))


def looked_at_from(expected: Expectation, place: int) -> Expectation:
    """The expectation if gradients, parameters and states are observed only from that event on."""
    kept: dict[str, Any] = {}
    for kind in ("gradients", "parameters", "states"):
        kept[kind] = {at: each for at, each in getattr(expected, kind).items() if at >= place}
    return replace(expected, **kept)


@law("P10", between_looks, needs=lambda claims: claims.stage is not None)
def test_what_nobody_looks_at_is_trained_all_the_same(trial: Trial, scenario: Scenario) -> None:
    """If the program reads gradients, parameters and state only after the last step, all of them are right then.

    Why: training reads none of them. Reading sharded values may communicate, wait for work in flight, or refresh stale
    copies, so tests that read all the time can hide a defect. A recipe. No report of it is known.
    """
    last = scenario.places(Step)[-1]
    run = trial.run(scenario, part=Part(looks=last))
    words = "A run at which nobody looks before its last step goes wrong."
    judge.values_equal(run, looked_at_from(trial.expected(scenario), last), words)


def unsharded(claims: Claims) -> Claims:
    """The claims of `UNSHARDED` in place of these. It averages in its own way."""
    kept: dict[str, Any] = {"sharded_by": None, "schedule": None, "masters": bool(claims.masters)}
    return replace(claims, stage=None, averaging=Claims.averaging, **kept)


def only_steps_round(scenario: Scenario, claims: Claims) -> bool:
    """True if gradients and norms are exact with the claimed way of averaging and with that of `UNSHARDED`."""
    for expected in (known(scenario, each) for each in (claims, unsharded(claims))):
        if expected is None:
            return False
        told = [value for each in expected.gradients.values() for value in each]
        if any(isinstance(value, Inside) for value in (*told, *expected.norms.values())):
            return False
    return True


def where_only_steps_round(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with steps and exact gradients.

    Unused parameters are left out, because implementations may treat them differently. Moved models are left out,
    because `UNSHARDED` does not support them.
    """
    drawn = exact_scenarios(replace(claims, unused=None, moved_parameters=False), has=("step",))
    return drawn.filter(lambda scenario: only_steps_round(scenario, claims))


@law("P10", where_only_steps_round, needs=lambda claims: is_sharded(claims) and claims.same_bits)
def test_every_stage_gives_the_bits_of_no_sharding_at_all(trial: Trial, scenario: Scenario) -> None:
    """The same program gives the same bits, rounded or not, with buckets and an unsharded optimizer.

    Why: ZeRO computes the same as data parallelism and only stores it elsewhere (Rajbhandari et al., 2020, section 1).
    Gradients are exact. Where rounding is claimed to be the same, later results round each element alike: torch's plain
    optimizers do. Fused SGD rounds the elements at the end of a vector in another way (measured).

    Broken by gradients that each backward resets, and by masters kept in another format: allenai/open-instruct#1498,
    TensorAuto/OpenTau#182.
    """
    plain = replace(trial, implementation=Implementation(UNSHARDED, unsharded(trial.claims)))
    whole = plain.run(replace(scenario, replicas=1))
    judge.runs_equal(trial.run(scenario), whole, "Sharded training is not training without shards.")


def between_constructions(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with steps, in which nothing is constructed again and no traceback keeps tensors alive."""
    return exact_scenarios(plainly_counted(claims), has=("step",)).filter(in_one_go)


def plainly_counted(claims: Claims) -> Claims:
    """The claims without features that keep further tensors alive.

    These are losses that the caller computes, gradients zeroed within a micro-batch, moved models, and unused losses.
    """
    plain = replace(claims, zeroes_late=False, measures_late=False, losses_read=False, double_backward=False)
    return replace(plain, moved_parameters=False, drops_losses=False)


def where_known(trial: Trial, scenario: Scenario, shares: dict[int, T]) -> dict[int, T]:
    """The shares without those right after steps, if steps may consume gradients."""
    if trial.claims.outlive_steps:
        return shares
    return {place: share for place, share in shares.items() if place not in scenario.places(Step)}


def in_one_go(scenario: Scenario) -> bool:
    """True if nothing is constructed again or saved by the caller, and no traceback keeps tensors alive."""
    return not scenario.has(SaveAndLoad, Save, Raise)


@law(
    "P10",
    between_constructions,
    needs=lambda claims: is_sharded(claims) and claims.exact_memory,
    witnesses={SHARED_OUT: OWNS_NOTHING},
    only_on=WEIGHED,
)
def test_what_is_sharded_is_held_once(trial: Trial, scenario: Scenario) -> None:
    """Between events all ranks together hold one copy of the sharded state, and no more than padding beside it.

    Why: sharding exists for this: (2 + 2 + k/N) bytes per parameter, (2 + (2 + k)/N) or (2 + 2 + k)/N. Every live
    storage counts, seen from outside.

    Recipes: shards that are views of the whole, gathered layers that are never freed, gradients that outlive their
    reduction. No report of it is known.
    """
    expected = trial.expected(scenario)
    run = trial.run(scenario, function=WEIGHING)
    trial.witnessed[SHARED_OUT] += keeps_state(expected)
    shares = where_known(trial, scenario, fair_shares(scenario, expected, trial.claims.stage or 0))
    memory.bytes_held(run, shares, "What is held is not what the stage needs.")


def with_and_without_state(claims: Claims) -> st.SearchStrategy[Scenario]:
    """The same. In half of them the optimizer keeps state, including master weights if claimed."""
    kinds = [("momentum",), ("adam",), *[("momentum", "masters")] * FEATURES["masters"].claimed(claims)]
    kept = st.one_of(*(exact_scenarios(plainly_counted(claims), has=has) for has in kinds))
    return st.one_of(between_constructions(claims), kept.filter(in_one_go))


@law(
    "P10",
    with_and_without_state,
    needs=lambda claims: claims.sharded_by is not None,
    witnesses={SHARED_OUT: OWNS_NOTHING},
    only_on=WEIGHED,
)
def test_each_rank_holds_its_slices_to_the_byte(trial: Trial, scenario: Scenario) -> None:
    """After every event each rank holds exactly the bytes that `oracle.zero` counts for its claimed slices.

    Why: a rank that holds more runs out of memory first, even if others hold less. No padding is allowed, so that small
    tensors hide nothing. While gradients are in flight nothing is checked.

    Recipes: whole parameters dealt out, padding that is kept, a second copy on one rank. No report of it is known.
    """
    expected = trial.expected(scenario)
    run = trial.run(scenario, function=WEIGHING)
    trial.witnessed[SHARED_OUT] += keeps_state(expected)
    stage, slices = trial.claims.stage or 0, trial.claims.sharded_by or ""
    shares = where_known(trial, scenario, held_between(scenario, expected, stage, slices))
    memory.slices_held(run, shares, "A rank does not hold its slices alone.")


def in_turn(claims: Claims) -> st.SearchStrategy[Scenario]:
    """The same. At stage 3 they have several units, which all ranks call in one order."""
    claims = plainly_counted(claims)
    if claims.stage == 3:
        alike = exact_scenarios(replace(claims, unused=None), "same on all ranks", has=("step", "units"))
        drawn = st.one_of(
            alike.filter(lambda scenario: len(scenario.units) > 1), exact_scenarios(claims, has=("step",))
        )
    else:
        drawn = st.one_of(*(exact_scenarios(claims, has=("step", *cap)) for cap in ((), ("cap",))))
    return drawn.filter(in_one_go)


@law(
    "P10",
    in_turn,
    needs=lambda claims: claims.sharded_by is not None and (claims.stage or 0) >= 2,
    witnesses={"something was whole for a time": TWO_UNITS},
    only_on=WEIGHED,
)
def test_only_what_is_in_use_is_whole(trial: Trial, scenario: Scenario) -> None:
    """While forward and backward run, a rank holds whole parameters of one unit, and whole gradients that are not yet
    reduced.

    Why: the peak of memory decides which model fits, and it cannot be seen between events. At stage 2 the gradients of
    a bucket are freed with its last member. At stage 3 parameters and gradients of a unit are freed when backward
    leaves it.

    Recipes: all units gathered at once, or freed with the last. No report of it is known.
    """
    expected, run = trial.expected(scenario), trial.run(scenario, function=WEIGHING)
    stage, slices = trial.claims.stage or 0, trial.claims.sharded_by or ""
    for rank, seen in enumerate(run.observations):
        for place, ledger in ledgers(scenario, expected, stage, slices, rank).items():
            wanted = moments(ledger, place, [(kind, which) for kind, which, *_ in seen["moments"][place]])
            trial.witnessed["something was whole for a time"] += any(each.gradients for each in wanted)
            memory.whole_at_a_time(run, rank, place, wanted, "What is whole is not what is in use.")
