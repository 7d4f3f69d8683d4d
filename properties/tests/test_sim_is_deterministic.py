"""The same scenarios have the same reports in every process, in any order, however often they run.

A longer form: ``python -m lockstep.properties.tests.test_sim_is_deterministic 1000``.
"""

import argparse
import random
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings

from lockstep.properties.claims import Claims
from lockstep.properties.strategies import scenarios
from lockstep.properties.trial import job
from lockstep.worlds.contract import Asynchrony, Job
from lockstep.worlds.sim.world import SimWorld
from lockstep.worlds.tests.outcomes import plain

IMPLEMENTATIONS = (
    "lockstep.impls.static_buckets:StaticBuckets",
    "lockstep.impls.frameworks.torch_ddp:TorchDDP",
    "lockstep.impls.async_hook:AsyncHookDataParallel",
    "lockstep.impls.hook_order_buckets:HookOrderBuckets",
    "lockstep.impls.zero3:Zero3",
    "lockstep.impls.frameworks.fsdp2:FSDP2",
    "lockstep.impls.twins.reductions:RingOfMessages",
    "lockstep.impls.faults.asynchrony:SendsFromOneBuffer",
)


def jobs(count: int) -> list[Job]:
    """So many scenarios, on right and wrong implementations in turn, that read and write at drawn moments."""
    drawn: list[Job] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck])
    @given(scenarios(Claims(accumulation=True)))
    def draw(scenario: object) -> None:
        chooser = random.Random(len(drawn))
        draws = tuple(chooser.randrange(7) for _ in range(9))
        here = job(IMPLEMENTATIONS[len(drawn) % len(IMPLEMENTATIONS)], scenario, contents=True)  # type: ignore[arg-type]
        drawn.append(replace(here, asynchrony=Asynchrony("drawn", "drawn", draws), timeline=True))

    while len(drawn) < count:
        draw()
    return drawn[:count]


@dataclass(frozen=True)
class Report:
    """Everything that is reported of a scenario, and whether some rank failed."""

    everything: object
    failed: bool


def reports(world: SimWorld, jobs: list[Job], order: list[int]) -> list[Report]:
    """By job, after running them in this order."""
    found: dict[int, Report] = {}
    for number in order:
        outcome = world.run(jobs[number])
        told = [(repr(plain(report.result)), report.error, report.timeline, report.hazards) for report in outcome]
        sent = [[plain(collective.sent) for collective in report.collectives] for report in outcome]
        found[number] = Report((told, sent), any(report.error is not None for report in outcome))
    return [found[number] for number in range(len(jobs))]


def three_times(count: int) -> tuple[int, int]:
    """Runs so many in three processes and orders. Returns how many differ, and how many failed in some way."""
    drawn = [*jobs(count), Job("lockstep.worlds.tests.programs:waiting_across_groups", "null", 2)]  # the last one fails
    forwards = list(range(count + 1))
    told = []
    for order in (forwards, forwards[::-1], random.Random(0).sample(forwards, count + 1)):
        world = SimWorld(limit=60.0)
        try:
            told.append(reports(world, drawn, order))
        finally:
            world.close()
    differ = sum(not (one == two == three) for one, two, three in zip(*told, strict=True))
    return differ, sum(report.failed for report in told[0])


def test_the_same_scenarios_have_the_same_reports_in_three_processes_and_orders() -> None:
    differ, failed = three_times(40)
    assert differ == 0
    assert failed > 0  # failures have reports too


def main() -> None:
    """Prints how many scenarios are not reported alike in three processes and orders."""
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.properties.tests.test_sim_is_deterministic", description=main.__doc__
    )
    parser.add_argument("scenarios", nargs="?", type=int, default=1000, help="how many (default: %(default)s)")
    wanted = parser.parse_args().scenarios
    if wanted < 1:
        parser.error(f"{wanted} scenarios: at least 1")
    differing, failing = three_times(wanted)
    print(f"{wanted} scenarios, three times: {differing} differ; {failing} of them fail on some rank")


if __name__ == "__main__":
    main()
