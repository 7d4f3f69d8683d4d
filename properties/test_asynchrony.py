"""P7: an implementation does not know when communication reads and writes, or in which order it adds."""

from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import anything
from lockstep.properties.strategies.several import with_several_backwards
from lockstep.properties.strategies.timing import (
    ASYNCHRONIES,
    DRAWN_ORDERS,
    WAIT,
    asynchrony_words,
    order_of,
    order_words,
)
from lockstep.properties.strategies.variants import evaluated_after_errors
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Asynchrony

CHOSEN = {
    "sim": "only the simulated world lets one choose this; on a real backend, as where the script runs, it is chance."
}
SMALLEST = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))
THREE_RANKS = Scenario(3, (Parameter((1,)),), (Backward(((0,), (0,), (0,))), Finish()))


def with_asynchrony(claims: Claims) -> st.SearchStrategy[tuple[Scenario, Asynchrony]]:
    """A scenario with any two features, and the moments at which its collectives and messages read and write.

    As far as claimed, also scenarios with buckets that are rebuilt after an error, with an evaluation after an error,
    or with several backwards.
    """
    drawn = with_any(claims, 2)
    if claims.survives_errors and claims.freezing and claims.bucket_cap:
        drawn |= exact_scenarios(claims, has=("raise, freeze", "cap"))
    if claims.survives_errors and claims.evaluates:
        failing = exact_scenarios(claims.without_broadcasts(), has=("raise, go on", *["cap"] * claims.bucket_cap))
        drawn |= failing.map(evaluated_after_errors)
    if claims.several_backwards:
        drawn |= with_several_backwards(claims)
    return st.tuples(drawn, ASYNCHRONIES)


def with_an_order(claims: Claims) -> st.SearchStrategy[tuple[Scenario, str | tuple[int, ...]]]:
    """A scenario, and the order in which its reductions add."""
    return st.tuples(exact_scenarios(claims), DRAWN_ORDERS)


@law(
    "P7",
    with_asynchrony,
    witnesses={"a collective was in flight": (SMALLEST, WAIT)},
    only_on=CHOSEN,
)
def test_collectives_may_read_and_write_at_any_time(trial: Trial, drawn: tuple[Scenario, Asynchrony]) -> None:
    """At whatever moments asynchronous collectives read and write, the result is the mean. Tensors in flight are
    neither used nor changed.

    Why: a backend may read its input until the collective is done, and write its output until `wait()` returns. Code
    that relies on an early moment is right by luck. So it keeps every handle and waits for it, and until then does not
    read, write or free the tensors.

    Broken by dropped handles, and by clipping, dividing or zeroing in flight: karpathy/nanochat#843,
    horovod/horovod#1116, determined-ai/determined#602.
    """
    scenario, asynchrony = drawn
    run = trial.run(scenario, asynchrony=asynchrony)
    trial.witnessed["a collective was in flight"] += any(run.collectives)
    where = f"where {asynchrony_words(asynchrony)}"
    judge.nothing_in_flight_is_touched(run, f"A collective in flight is touched, {where}:")
    judge.values_equal(run, trial.expected(scenario), f"Values are wrong {where}.")


@law(
    "P7",
    with_an_order,
    witnesses={"three ranks or more added up": (THREE_RANKS, "reversed")},
    only_on=CHOSEN,
    made_of=lambda _, scenario: (scenario, "reversed") if scenario.world_size > 2 and anything(scenario) else None,
    share=0.6,
)
def test_exact_sums_do_not_depend_on_the_order_of_reduction(
    trial: Trial, drawn: tuple[Scenario, str | tuple[int, ...]]
) -> None:
    """Exact data has one mean, bit for bit, in any order of reduction: by rank, reversed, on a tree, on a ring, or any
    other.

    Why: the backend chooses the order by size, topology and version. If all partial sums are exact in the parameter's
    dtype, only a narrower dtype on the wire or a scale that rounds can make a difference.

    Broken by gradients that are reduced in bfloat16 but should not be: pytorch/pytorch#186998.
    """
    scenario, order = drawn
    run = trial.run(scenario, order=order_of(order))
    trial.witnessed["three ranks or more added up"] += scenario.world_size > 2
    judge.values_equal(run, trial.expected(scenario), f"Values are wrong in {order_words(order)} of reduction.")
