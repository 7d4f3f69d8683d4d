"""Run and judge one program of the core language: its scenario, the timings of its collectives, and the checks."""

from collections.abc import Iterator

from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.exhausting.language import LOCAL, STEP, SYNCHRONIZED, Orders, Shape
from lockstep.properties.judging import judge
from lockstep.properties.judging.matching import same_collectives
from lockstep.properties.law import PLAINEST, Law, law_of
from lockstep.properties.searching.search import how_broken
from lockstep.properties.strategies.scenarios import comparable
from lockstep.properties.strategies.within import beyond
from lockstep.properties.test_asynchrony import test_collectives_may_read_and_write_at_any_time
from lockstep.properties.trial import Run, Trial
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import Asynchrony

# Up to this size a program runs with every delivery. Each such run takes two or three times as long as a usual one.
DELIVERED = 8
# The earliest and the latest delivery. Usually, collectives read when launched and write when waited for.
EARLY, LATE = Asynchrony("launch", "completion"), Asynchrony("completion", "wait")
# The law on runs with an unusual delivery.
OF_DELIVERIES = law_of(test_collectives_may_read_and_write_at_any_time)
NOT_CLAIMED, NOT_KNOWN = "not claimed", "the oracle cannot tell right from wrong there"


def asked(trial: Trial, shape: Shape, orders: Orders) -> Scenario | str:
    """The scenario, or the reason why there is none: `NOT_CLAIMED` or `NOT_KNOWN`.

    If micro-batches follow a step, the quadratic probe is used if its values are known, because it shows stale weights.
    """
    stepped = any(letter in (SYNCHRONIZED, LOCAL) for letter in shape.events.partition(STEP)[2])
    for probe in ("quadratic", "linear") if stepped else ("linear",):
        scenario = shape.scenario(orders, probe, trial.claims.wire_dtype or "")
        if beyond(trial.claims, scenario):
            return NOT_CLAIMED
        if _is_known(trial, scenario):
            return scenario
    return NOT_KNOWN


def _is_known(trial: Trial, scenario: Scenario) -> bool:
    if comparable(scenario, trial.claims) is None:
        return False
    try:
        trial.expected(scenario)
    except UnsatisfiedAssumption:  # its optimizer may compute in another form than torch's, for which this is not known
        return False
    return True


def check(trial: Trial, scenario: Scenario, delivered: bool) -> int:
    """Run and judge a program, and return the number of its runs. Raises LawBroken or Refused.

    ``delivered``: also run it with every delivery if it has collectives. These are the earliest, the latest, and the
    second, third and each later moment, up to the number of collectives of a rank.
    """
    run, expected = trial.run_and_expect(scenario)
    judge.values_equal(run, expected, "Gradients are not the mean over ranks.", about="gradient")
    same_collectives(run, "Ranks issue different collectives.")
    judge.replicas_equal(run, "Replicas differ.")
    runs = 1
    for delivery in deliveries(run) if delivered else ():
        OF_DELIVERIES.check(trial, (scenario, delivery))
        runs += 1
    return runs


def deliveries(run: Run) -> Iterator[Asynchrony]:
    """The deliveries that may differ from a usual run. For drawn moments, an odd number means a late read."""
    most = max(map(len, run.since_construction))
    if most:
        yield from (EARLY, LATE)
        yield from (Asynchrony("drawn", "drawn", (1, moment)) for moment in range(2, most + 1))  # 1: reads late


def plainest(trial: Trial, scenario: Scenario, broken: LawBroken) -> tuple[Law, object, LawBroken]:
    """The plainest law that a failure breaks, the value that this law takes, and the failure."""
    delivery = broken.choices.get("asynchrony")
    if delivery is not None:
        return OF_DELIVERIES, (scenario, delivery), broken
    laws = [every_law()[name] for name in PLAINEST]
    for law in laws:
        if (again := how_broken(law, trial, scenario, [])) is not None:
            return law, scenario, again
    return laws[0], scenario, broken
