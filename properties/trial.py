"""An implementation on a world: runs scenarios, and counts events that took place."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.expectation import Expectation
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import MASTERS, SHARDS_PARAMETERS, Claims
from lockstep.properties.companion import companion, partner
from lockstep.properties.conditions import Conditions
from lockstep.properties.difference import Difference
from lockstep.properties.errors import judge_errors
from lockstep.properties.expected import expect
from lockstep.properties.implementations import Implementation
from lockstep.properties.members import as_a_world
from lockstep.properties.strategies.timing import order_drawn_for, order_of
from lockstep.properties.strategies.within import beyond
from lockstep.properties.verdict import LawBroken, Refused, SilentlyWrong
from lockstep.worlds import process
from lockstep.worlds.contract import (
    MESSAGES,
    Asynchrony,
    Collective,
    Job,
    OrderOf,
    Outcome,
    RankReport,
    World,
)

# Every law needs this witness: an example in which no rank refused or failed.
ENDED = "ran to its end"
ORDERS = "hooks fired in different orders on different ranks"
# A law about gradients needs this witness: every rank took part.
SENT = "ranks sent something after construction"
# Every law needs this witness, because one rank alone shows nothing about data parallelism.
TOGETHER = "two ranks or more ran to their end"
FUNCTION = (
    "lockstep.properties.ranks.program:run_program"  # a name, so that its imports happen on the ranks and not here
)
# Imported once by each fork server, because every process needs it.
process.preload("lockstep.properties.ranks.program")


class SetAside(UnsatisfiedAssumption):
    """The program contains the cause of a known defect, so it is no example."""


@dataclass(frozen=True)
class Run:
    """A program that every rank ran to its end, with observations and collectives by rank.

    - ``trained``: by rank, the collectives that did not serve construction, which loading a file may repeat; None if
      these are not known, as for a real model.
    - ``looks``: by rank, the collectives that only served observation.
    - ``stage``: the one that the implementation claims.
    - ``choices``: the chosen fields of its `Job` that only the simulated world uses, and the `Conditions` that differ
      from their defaults.
    """

    scenario: Scenario
    outcome: Outcome
    trained: Sequence[tuple[Collective, ...]] | None
    stage: int | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    looks: Sequence[tuple[Collective, ...]] = ()
    # Comparisons that succeeded, by quantity, so that laws with the same comparison need not repeat it.
    right: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def start(self) -> str:
        """The moment of the first observation of ranks, in words."""
        return "the first forward" if "equal_from" in self.choices else "construction"

    def broken(self, kind: type[LawBroken], headline: str, difference: Difference | None = None) -> LawBroken:
        """A failure of this run, to be raised."""
        return kind(headline, self.scenario, self.outcome, difference, self.choices)

    @property
    def observations(self) -> list[Any]:
        """The observations of each rank; for a program `properties.seen.Seen`."""
        return [report.result for report in self.outcome]

    @property
    def since_construction(self) -> Sequence[tuple[Collective, ...]]:
        """By rank, the collectives that served training. Raises ValueError if these are not known."""
        if self.trained is None:
            raise ValueError(f"which collectives served the construction of {self.scenario!r} is not known")
        return self.trained

    @property
    def collectives(self) -> list[tuple[Collective, ...]]:
        """By rank, the issued collectives in order."""
        return [report.collectives for report in self.outcome]


class SettingAside(Protocol):
    """The part of a defect in a search: it raises SetAside for programs and failures that are not to count."""

    def __call__(self, drawn: Any) -> None:
        """Raise SetAside if a program is not to run."""

    def excuse(self, trial: "Trial", broken: LawBroken) -> None:
        """Raise SetAside if a failure is not to count."""


@dataclass
class Trial:
    """One implementation on one world.

    - ``witnessed``: counts of events that took place, against vacuous passes.
    - ``confirm_on``: gives a real world, on which failures of the simulated one are run again.
    - ``sim``: gives the simulated world, on which failures of a real one are shrunk.
    - ``at_once``, ``limit``: passed to the world with every job.
    - ``apart``: every run has fresh processes.
    - ``any_order``: reductions of the simulated world add in an order drawn for each job, unless the job names one.
      Real worlds have their own order.
    - ``own_state``: simulated ranks have separate global variables and class attributes.
    - ``left``: things that ranks have left behind, for example a thread.
    - ``world_fault``: the fault of the world itself, if there is one.
    - ``report``: the folder for scripts of failures; None: the default one.
    - ``runs``: the runs of one example, by implementation and program, which are reused; None: nothing is kept. A law
      may also run another implementation, to compare.
    - ``aside``: called with each program before it runs, and asked about each failure.
    """

    implementation: Implementation
    world: World
    confirm_on: Callable[[], World] | None = None
    sim: Callable[[], World] | None = None
    at_once: bool = False
    limit: float | None = None
    apart: bool = False
    any_order: bool = False
    own_state: bool = False
    witnessed: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    world_fault: str = ""
    report: Path | None = None
    runs: "dict[tuple[Implementation, Scenario], tuple[Run, Counter[str]]] | None" = None
    aside: "SettingAside | None" = None

    @property
    def claims(self) -> Claims:
        """The claims of the implementation, restricted to the world's number of ranks."""
        claims, most = self.implementation.claims, self.world.ranks
        return claims if most is None else replace(claims, most_ranks=min(most, claims.most_ranks))

    def expected(self, scenario: Scenario) -> Expectation:
        """The expectation of every rank, with the choices that the implementation claims.

        On a GPU torch's optimizers may compute in other forms, and so may sharded optimizers. If the result is then not
        known, this raises UnsatisfiedAssumption, so that the scenario is no example.
        """
        torchs = self.world.device == "cpu" and (self.claims.stage is None or self.claims.same_bits)
        optimizers = "torch cpu" if torchs else "any"
        try:
            return expect(scenario, self.claims, optimizers)
        except Inexact as inexact:
            if torchs:
                raise
            raise UnsatisfiedAssumption(str(inexact)) from None

    def outcome(self, asked: Job) -> Outcome:
        """Run a job on the world with the options of this trial."""
        if self.apart:
            self.world.close()
        order = order_of(order_drawn_for(asked.payload)) if self.any_order and asked.order is None else asked.order
        how = {"at_once": self.at_once, "own_state": self.own_state, "limit": self.limit, "order": order}
        outcome = self.world.run(replace(asked, **how))  # type: ignore[arg-type]
        self.left.update(each for report in outcome for each in report.left)
        return outcome

    def ended(self, outcome: Outcome) -> None:
        """Note an example that every rank ran to its end."""
        self.witnessed[ENDED] += 1
        self.witnessed[TOGETHER] += len(outcome) > 1

    def run(
        self,
        scenario: Scenario,
        contents: bool = False,
        asynchrony: Asynchrony | None = None,
        order: OrderOf | None = None,
        timeline: bool = False,
        function: str = FUNCTION,
        **conditions: Any,
    ) -> Run:
        """Run a scenario on the world. Raises LawBroken or Refused if not every rank finished.

        ``asynchrony``, ``order`` and ``timeline``: see `worlds.contract.Job`; only the simulated world uses them.
        ``conditions``: the `properties.conditions.Conditions` that differ from their defaults, by name.
        """
        as_usual = not contents and not timeline and function == FUNCTION and not conditions
        key = self.implementation, scenario
        if as_usual and asynchrony is None and order is None and self.runs is not None and key in self.runs:
            kept, witnessed = self.runs[key]
            self.witnessed.update(witnessed)
            return kept
        if asked := beyond(self.claims, scenario):
            raise RuntimeError(
                f"Lockstep asks {self.implementation.name} for what it does not claim, {asked}: a fault of Lockstep's, "
                f"please report it: {scenario!r}"
            )
        if self.aside is not None:
            self.aside(scenario)
        for other, make in ((scenario.caller.beside, companion), (scenario.caller.joint, partner)):
            if other:
                # Made here too, because an error of Lockstep on ranks would be blamed on the implementation.
                make(scenario)
        conditions |= {"equal_from": self.claims.equal_from, "asks_for_masters": self.claims.masters != MASTERS}
        if self.claims.is_optimizer:
            conditions |= {"averages_in_step": self.claims.averages_in_step, "saved_by": self.claims.saved_by}
            conditions |= {"zeros": self.claims.unused == "zero"}
        if self.claims.stage == SHARDS_PARAMETERS:
            conditions |= {"pieces": True, "in_layers": self.claims.plain_layers}
        of_the_world = {"asynchrony": asynchrony, "order": order, "timeline": timeline}
        choices = {name: value for name, value in of_the_world.items() if value}
        choices |= Conditions.of(conditions).unusual()
        wanted = job(self.implementation.name, scenario, contents, choices)
        outcome = as_a_world(self.outcome(replace(wanted, function=function)), scenario)
        try:
            judge_errors(scenario, outcome)
        except (LawBroken, Refused) as ended:
            ended.choices = choices
            raise
        for rank, report in enumerate(outcome):
            for complaint in report.result["complaints"] if report.result else ():
                raise SilentlyWrong(f"On rank {rank} {complaint}.", scenario, outcome, choices=choices)
        witnessed = Counter({ENDED: 1, TOGETHER: int(len(outcome) > 1)})
        witnessed[SENT] += len(outcome) > 1 and all(any(trains(report, scenario)) for report in outcome)
        trained = [without(report, "looks", "built", "callers").collectives for report in outcome]
        looks = [tuple(looked_at(report)) for report in outcome]
        outcome = tuple(without(report, "looks") for report in outcome)
        fired = [report.result["hooks"] for report in outcome if report.result is not None]
        witnessed[ORDERS] += any(hooks != fired[0] for hooks in fired)
        self.witnessed.update(witnessed)
        run = Run(scenario, outcome, trained, self.claims.stage, choices, looks)
        if as_usual and self.runs is not None:
            self.runs.setdefault(key, (run, witnessed))
        return run

    def run_and_expect(self, scenario: Scenario) -> tuple[Run, Expectation]:
        """Run a scenario under usual conditions.

        Returns the run and the expectation. Raises as `run` and `expected` do.
        """
        return self.run(scenario), self.expected(scenario)


def job(
    implementation: str, scenario: Scenario, contents: bool = False, choices: Mapping[str, Any] | None = None
) -> Job:
    """The job for a world. ``choices``: as in `Trial.run`; some are passed to the world, the others to the ranks."""
    choices = choices or {}
    ranks = of_the_ranks(choices)
    payload = json.dumps({"implementation": implementation, "scenario": scenario.to_json(), **ranks})
    of_the_world = {name: choices[name] for name in choices.keys() - ranks.keys()}
    return Job(FUNCTION, payload, scenario.world_size + scenario.outsiders, contents, **of_the_world)


def of_the_ranks(choices: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choices that are passed to the ranks; the others are passed to the world."""
    return {name: value for name, value in choices.items() if name not in ("asynchrony", "order", "timeline")}


def trains(report: RankReport, scenario: Scenario) -> Iterator[bool]:
    """For each collective that serves training, true if it is more than a broadcast of buffers.

    Collectives for construction, observation and the caller's own purposes are left out.
    """
    for call in without(report, "looks", "built", "callers").collectives:
        yield call.operation != "broadcast" or not scenario.buffers


def looked_at(report: RankReport) -> Iterator[Collective]:
    """The collectives that only served observation."""
    for begin, end in report.result["looks"] if report.result is not None else ():
        yield from report.collectives[begin:end]


def without(report: RankReport, *kinds: str) -> RankReport:
    """The report without the collectives of some kinds.

    The kinds: "built", for construction; "callers", for the caller's own purposes; "looks", for observation. The report
    is unchanged for a rank that did not finish, because these are not known then.
    """
    if report.result is None:
        return report
    served = {place for kind in kinds for begin, end in report.result[kind] for place in range(begin, end)}
    if not served:
        return report
    kept = tuple(call for place, call in enumerate(report.collectives) if place not in served)
    timed = (place for place, call in enumerate(report.collectives) if call.operation not in MESSAGES)
    passages = zip(report.timeline, timed, strict=False)
    return replace(report, collectives=kept, timeline=tuple(each for each, place in passages if place not in served))
