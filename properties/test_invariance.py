"""P8: what must not matter does not."""

from dataclasses import replace

from hypothesis import strategies as st

from oracle.program import Backward, Finish, Parameter, Scenario, ZeroGrad
from properties import judge
from properties.claims import Claims
from properties.law import law
from properties.strategies import bucket_caps, exact_scenarios
from properties.trial import Trial

TWO_ORDERS = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (1, 0))), Finish()))
# Two iterations: torch DDP puts everything into one bucket in the first.
_ITERATION = (Backward(((0, 1), (0, 1))), Finish())
ONE_BUCKET = Scenario(2, (Parameter((7,)), Parameter((7,))), (*_ITERATION, ZeroGrad(), *_ITERATION))


def with_another_cap(claims: Claims) -> st.SearchStrategy[tuple[Scenario, Scenario]]:
    """A scenario, and the same with another bucket cap."""
    return exact_scenarios(claims, enclosed=False).flatmap(
        lambda scenario: st.tuples(
            st.just(scenario), bucket_caps(scenario.parameters).map(lambda cap: replace(scenario, bucket_cap=cap))
        )
    )


@law(
    "P8",
    with_another_cap,
    needs=lambda claims: claims.bucket_cap,
    witnesses={"two caps led to different collectives": (ONE_BUCKET, replace(ONE_BUCKET, bucket_cap=28))},
)
def test_the_result_does_not_depend_on_the_bucket_cap(trial: Trial, pair: tuple[Scenario, Scenario]) -> None:
    """The same program with another bucket cap gives the same bits.

    Why: a cap decides what travels together, not what is computed. Broken at the boundary, where a parameter is just as
    large as the cap: microsoft/DeepSpeed#4321.
    """
    one, other = (trial.run(scenario) for scenario in pair)
    trial.witnessed["two caps led to different collectives"] += one.collectives != other.collectives
    judge.runs_equal(
        one, other, f"The result changes with the bucket cap ({pair[0].bucket_cap} or {pair[1].bucket_cap} bytes)."
    )


@law(
    "P8",
    lambda claims: exact_scenarios(claims, enclosed=False),
    needs=lambda claims: claims.hook_order,
    witnesses={"hooks fired in different orders on different ranks": TWO_ORDERS},
)
def test_the_result_does_not_depend_on_the_order_in_which_hooks_fire(trial: Trial, scenario: Scenario) -> None:
    """The same program with every backward in registration order gives the same bits.

    Why: the order in which gradients become final is autograd's business and may differ from rank to rank. Broken by
    buckets filled or sent in that order: microsoft/DeepSpeed#2343, NVIDIA/Megatron-LM#2218.
    """
    judge.runs_equal(
        trial.run(scenario), trial.run(in_registration_order(scenario)), "The result changes with the order of hooks."
    )


def in_registration_order(scenario: Scenario) -> Scenario:
    """The same scenario, every backward reaching its parameters in registration order."""
    program = tuple(
        replace(event, orders=tuple(tuple(sorted(order)) for order in event.orders))
        if isinstance(event, Backward)
        else event
        for event in scenario.program
    )
    return replace(scenario, program=program)
