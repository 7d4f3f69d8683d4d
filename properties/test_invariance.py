"""P8: changes that must not matter do not matter."""

from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Finish, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.expected import is_exact
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.naming import exchanged, names
from lockstep.properties.strategies import bucket_caps, exact_scenarios
from lockstep.properties.trial import ORDERS, SENT, Trial

ONE_ORDER = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (0, 1))), Finish()))
TWO_ORDERS = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (1, 0))), Finish()))
# Three iterations: torch DDP uses a single bucket in the first, and other implementations adapt until the third.
_ITERATION = (Backward(((0, 1), (0, 1))), Finish(), ZeroGrad())
ONE_BUCKET = Scenario(2, (Parameter((7,)), Parameter((7,))), _ITERATION * 3)


def with_another_cap(claims: Claims) -> st.SearchStrategy[tuple[Scenario, Scenario]]:
    """A scenario, and the same one with another bucket cap."""
    return exact_scenarios(claims, enclosed=False).flatmap(
        lambda scenario: st.tuples(
            st.just(scenario), bucket_caps(scenario.parameters).map(lambda cap: replace(scenario, bucket_cap=cap))
        )
    )


def with_some_cap(claims: Claims, scenario: Scenario) -> tuple[Scenario, Scenario] | None:
    """A scenario of the general draw, and the same one with each parameter in its own bucket, or without a cap."""
    other = replace(scenario, bucket_cap=0 if scenario.bucket_cap is None else None)
    return (scenario, other) if is_exact(scenario, claims) else None


@law(
    "P8",
    with_another_cap,
    needs=lambda claims: claims.bucket_cap,
    witnesses={"two caps led to different collectives": (ONE_BUCKET, replace(ONE_BUCKET, bucket_cap=28))},
    made_of=with_some_cap,
    share=0.35,
)
def test_the_result_does_not_depend_on_the_bucket_cap(trial: Trial, pair: tuple[Scenario, Scenario]) -> None:
    """The same program with another bucket cap gives the same bits.

    Why: a cap decides which gradients travel together, not their values.

    Broken at the boundary, if a parameter is exactly as large as the cap: deepspeedai/DeepSpeed#4321.
    """
    one, other = (trial.run(scenario) for scenario in pair)
    trial.witnessed["two caps led to different collectives"] += one.collectives != other.collectives
    words = f"The result changes with the bucket cap ({pair[0].bucket_cap} or {pair[1].bucket_cap} bytes)."
    judge.runs_agree(one, other, trial.expected(pair[0]), words)


def out_of_order(claims: Claims, scenario: Scenario) -> Scenario | None:
    """A scenario of the general draw in which some backward is not in registration order."""
    return scenario if in_registration_order(scenario) != scenario and is_exact(scenario, claims) else None


@law(
    "P8",
    lambda claims: exact_scenarios(claims, enclosed=False),
    needs=lambda claims: claims.hook_order,
    witnesses={ORDERS: TWO_ORDERS, SENT: TWO_ORDERS},
    made_of=out_of_order,
    share=0.35,
)
def test_the_result_does_not_depend_on_the_order_in_which_hooks_fire(trial: Trial, scenario: Scenario) -> None:
    """The same program with every backward in registration order gives the same bits.

    Why: autograd decides the order in which gradients become final, and the order may differ between ranks.

    Broken by buckets filled or sent in that order: deepspeedai/DeepSpeed#2343, NVIDIA/Megatron-LM#2218.
    """
    one, other = trial.run(scenario), trial.run(in_registration_order(scenario))
    judge.runs_agree(one, other, trial.expected(scenario), "The result changes with the order of hooks.")


def in_registration_order(scenario: Scenario) -> Scenario:
    """The scenario with every backward in registration order."""
    return scenario.with_each(Backward, lambda batch: (batch.with_each_order(sorted),))


def with_relabeled_ranks(claims: Claims) -> st.SearchStrategy[tuple[Scenario, tuple[int, ...]]]:
    """A scenario, and for each rank the rank whose part it takes; some take another one's."""
    return exact_scenarios(claims, enclosed=False).flatmap(lambda scenario: permuted(scenario, scenario.world_size))


def turned(count: int) -> tuple[int, ...]:
    """The permutation that moves each item to the place of the previous one."""
    return (*range(1, count), 0)


def with_ranks_turned(claims: Claims, scenario: Scenario) -> tuple[Scenario, tuple[int, ...]] | None:
    """A scenario with several ranks, each of which takes the part of the next."""
    usable = scenario.world_size > 1 and not scenario.roles and is_exact(scenario, claims)
    return (scenario, turned(scenario.world_size)) if usable else None


def registered_otherwise(claims: Claims, scenario: Scenario) -> tuple[Scenario, tuple[int, ...]] | None:
    """A scenario with several parameters, of which the first is registered last."""
    usable = len(scenario.parameters) > 1 and not scenario.registered and is_exact(scenario, claims)
    return (scenario, turned(len(scenario.parameters))) if usable else None


def permuted(scenario: Scenario, count: int) -> st.SearchStrategy[tuple[Scenario, tuple[int, ...]]]:
    """A scenario with a permutation of so many items, which is the identity only for one item."""
    orders = st.permutations(range(count)).map(tuple)
    return st.tuples(st.just(scenario), orders.filter(lambda order: count == 1 or order != tuple(range(count))))


@law(
    "P8",
    with_relabeled_ranks,
    witnesses={"ranks were relabeled": (ONE_ORDER, (1, 0))},
    made_of=with_ranks_turned,
    share=0.35,
)
def test_it_does_not_matter_which_rank_holds_which_samples(
    trial: Trial, drawn: tuple[Scenario, tuple[int, ...]]
) -> None:
    """If the ranks' samples, errors and orders are permuted, every rank gets the same bits.

    Why: a mean has no order, and the data is exact.

    Broken where a rank's own number decides which data is sent, kept or counted: deepspeedai/DeepSpeed#2343,
    NVIDIA/Megatron-LM#2218.
    """
    scenario, roles = drawn
    trial.witnessed["ranks were relabeled"] += roles != tuple(range(scenario.world_size))
    usual, relabeled = trial.run(scenario), trial.run(replace(scenario, roles=roles))
    words = f"The result changes where {exchanged(roles)}."
    judge.runs_agree(usual, relabeled, trial.expected(scenario), words)


def with_another_registration(claims: Claims) -> st.SearchStrategy[tuple[Scenario, tuple[int, ...]]]:
    """A scenario, and an order in which to register its parameters."""
    return exact_scenarios(claims, enclosed=False).flatmap(
        lambda scenario: permuted(scenario, len(scenario.parameters))
    )


@law(
    "P8",
    with_another_registration,
    witnesses={"parameters were registered in another order": (ONE_ORDER, (1, 0))},
    made_of=registered_otherwise,
    share=0.35,
)
def test_the_result_does_not_depend_on_the_order_of_registration(
    trial: Trial, drawn: tuple[Scenario, tuple[int, ...]]
) -> None:
    """If parameters are registered in another order, so that buckets are filled in another order, every rank gets the
    same bits.

    Why: buckets partition the elements, each in one bucket, in any order.

    Broken by forgetting the last bucket, by an empty first bucket, and by using the first parameter's dtype for all:
    facebookresearch/fairscale#517, deepspeedai/DeepSpeed#1214, facebookresearch/fairscale#583.
    """
    scenario, order = drawn
    trial.witnessed["parameters were registered in another order"] += order != tuple(range(len(order)))
    usual, registered = trial.run(scenario), trial.run(replace(scenario, registered=order))
    words = f"The result changes if parameters are registered in the order {names(order)}."
    judge.runs_agree(usual, registered, trial.expected(scenario), words)
