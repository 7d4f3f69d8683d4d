"""One program of the core language on the ranks: the scenario that is claimed, its deliveries, and what is judged."""

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

# Up to this size a program runs with every delivery; each takes two or three times as long as a run as usual.
DELIVERED = 8
# As early and as late as may be. As usual, collectives read when launched and write when waited for.
EARLY, LATE = Asynchrony("launch", "completion"), Asynchrony("completion", "wait")
# The law on runs with another delivery than the usual one.
OF_DELIVERIES = law_of(test_collectives_may_read_and_write_at_any_time)
NOT_CLAIMED, NOT_KNOWN = "not claimed", "the oracle cannot tell right from wrong there"


def asked(trial: Trial, shape: Shape, orders: Orders) -> Scenario | str:
    """The scenario, or why there is none: `NOT_CLAIMED` or `NOT_KNOWN`.

    Micro-batches that follow a step take the quadratic probe, which shows stale weights, if its values are known.
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
    except UnsatisfiedAssumption:  # its optimizer may have another form than torch's, of which this cannot be told
        return False
    return True


def check(trial: Trial, scenario: Scenario, delivered: bool) -> int:
    """Runs and judges a program. The number of its runs. Raises LawBroken, or Refused.

    ``delivered``: also with every delivery, unless it has no collective: as early and as late as may be, and at the
    second, third and each later moment, up to as many as a rank has collectives.
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
    """The deliveries that may differ from a run as usual; a drawn number that is odd reads late, and d is a moment."""
    most = max(map(len, run.since_construction))
    if most:
        yield from (EARLY, LATE)
        yield from (Asynchrony("drawn", "drawn", (1, moment)) for moment in range(2, most + 1))  # 1: reads late


def plainest(trial: Trial, scenario: Scenario, broken: LawBroken) -> tuple[Law, object, LawBroken]:
    """The plainest law that a failure breaks, what that law takes, and how it is broken."""
    delivery = broken.choices.get("asynchrony")
    if delivery is not None:
        return OF_DELIVERIES, (scenario, delivery), broken
    laws = [every_law()[name] for name in PLAINEST]
    for law in laws:
        if (again := how_broken(law, trial, scenario, [])) is not None:
            return law, scenario, again
    return laws[0], scenario, broken
