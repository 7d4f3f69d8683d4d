"""An implementation on a world: runs scenarios, and notes what has taken place."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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

# What every law has to witness: an example in which no rank refused or failed.
ENDED = "ran to its end"
ORDERS = "hooks fired in different orders on different ranks"
# What a law about gradients has to witness: every rank had a part in it.
SENT = "ranks sent something after construction"
# What every law has to witness: one rank alone shows nothing about data parallelism.
TOGETHER = "two ranks or more ran to their end"
FUNCTION = (
    "lockstep.properties.ranks.program:run_program"  # by name: what it needs is imported where the ranks are, not here
)
process.preload("lockstep.properties.ranks.program")  # by each fork server once, for every process needs it


class SetAside(UnsatisfiedAssumption):
    """The program contains the cause of a known defect, so it is no example."""


@dataclass(frozen=True)
class Run:
    """A program that every rank ran to its end: the observations, and the collectives, by rank.

    ``trained``: by rank, the collectives that did not serve construction, which loading a file may repeat; None: which
    those are is not known, as of a real model. ``looks``: by rank, those that only served to look at what is held.
    ``stage``: that the implementation claims. ``choices``: the fields of its `Job` that only the simulated world heeds,
    where they were chosen, and those of its `Conditions` that are not as usual.
    """

    scenario: Scenario
    outcome: Outcome
    trained: Sequence[tuple[Collective, ...]] | None
    stage: int | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    looks: Sequence[tuple[Collective, ...]] = ()
    # What has been compared with it and was right, by what was compared: laws that ask the same are answered at once.
    right: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def start(self) -> str:
        """After what ranks were seen for the first time, in words."""
        return "the first forward" if "equal_from" in self.choices else "construction"

    def broken(self, kind: type[LawBroken], headline: str, difference: Difference | None = None) -> LawBroken:
        """A failure of this run, to be raised."""
        return kind(headline, self.scenario, self.outcome, difference, self.choices)

    @property
    def observations(self) -> list[Any]:
        """By rank, what it has seen: of a program `properties.seen.Seen`."""
        return [report.result for report in self.outcome]

    @property
    def since_construction(self) -> Sequence[tuple[Collective, ...]]:
        """By rank, the collectives that served training. Raises ValueError where it is not known which those are."""
        if self.trained is None:
            raise ValueError(f"which collectives served the construction of {self.scenario!r} is not known")
        return self.trained

    @property
    def collectives(self) -> list[tuple[Collective, ...]]:
        """By rank, the collectives issued, in order."""
        return [report.collectives for report in self.outcome]


@dataclass
class Trial:
    """One implementation on one world. ``witnessed`` counts what has taken place, against vacuous passes.

    ``confirm_on`` gives a real world on which a failure of the simulated one is run again, ``sim`` the simulated world,
    on which a failure of a real one is shrunk. ``at_once`` and ``limit`` go to the world with every job. ``apart``:
    every run has processes of its own, in which nothing has run before. ``any_order``: the simulated world's reductions
    add in an order drawn for each job, where it names none; real worlds have their own. ``own_state``: simulated ranks
    have global variables and class attributes of their own. ``left``: what ranks have left behind, such as a thread.
    ``world_fault``: what is wrong with the world itself, if anything is. ``report``: the folder for scripts of
    failures; None: the usual one. ``runs``: what has run of one example, by the implementation and its program: who
    asks for it again is given the same; None: nothing is kept. A law may run another implementation, to compare.
    ``aside`` is shown each program that is about to run, and raises SetAside for what is set aside.
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
    aside: Callable[[Any], None] | None = None

    @property
    def claims(self) -> Claims:
        """The claims of the implementation, as far as the world has ranks for them."""
        claims, most = self.implementation.claims, self.world.ranks
        return claims if most is None else replace(claims, most_ranks=min(most, claims.most_ranks))

    def expected(self, scenario: Scenario) -> Expectation:
        """The expectation of every rank, with the choices that the implementation claims.

        On a GPU torch's optimizers have other forms, and so may those that shards bring along; what cannot be told then
        is not an example: UnsatisfiedAssumption.
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
        """Runs a job on the world, as every job of this trial is run."""
        if self.apart:
            self.world.close()
        order = order_of(order_drawn_for(asked.payload)) if self.any_order and asked.order is None else asked.order
        how = {"at_once": self.at_once, "own_state": self.own_state, "limit": self.limit, "order": order}
        outcome = self.world.run(replace(asked, **how))  # type: ignore[arg-type]
        self.left.update(each for report in outcome for each in report.left)
        return outcome

    def ended(self, outcome: Outcome) -> None:
        """Takes note of an example that every rank ran to its end."""
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
        """Runs a scenario on the world. Raises a LawBroken, or Refused, where not every rank came to the end.

        ``asynchrony``, ``order`` and ``timeline``: see `worlds.contract.Job`; only the simulated world heeds them.
        ``conditions``: those of `properties.conditions.Conditions` that are not as usual, by name.
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
                make(scenario)  # an error of ours is one here; on ranks it would be the implementation's
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
        """Runs a scenario as usual: the run, and what every rank must hold. Raises as `run` and `expected` do."""
        return self.run(scenario), self.expected(scenario)


def job(
    implementation: str, scenario: Scenario, contents: bool = False, choices: Mapping[str, Any] | None = None
) -> Job:
    """The job for a world. ``choices``: those of `Trial.run`; what is not the world's is the ranks'."""
    choices = choices or {}
    ranks = of_the_ranks(choices)
    payload = json.dumps({"implementation": implementation, "scenario": scenario.to_json(), **ranks})
    of_the_world = {name: choices[name] for name in choices.keys() - ranks.keys()}
    return Job(FUNCTION, payload, scenario.world_size + scenario.outsiders, contents, **of_the_world)


def of_the_ranks(choices: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choices that ranks are told; the others are the world's."""
    return {name: value for name, value in choices.items() if name not in ("asynchrony", "order", "timeline")}


def trains(report: RankReport, scenario: Scenario) -> Iterator[bool]:
    """Of each collective that serves neither construction nor the suite, nor the caller's own ends, whether it is more
    than one of buffers.
    """
    for call in without(report, "looks", "built", "callers").collectives:
        yield call.operation != "broadcast" or not scenario.buffers


def looked_at(report: RankReport) -> Iterator[Collective]:
    """The collectives that only served the suite, to look at what is held."""
    for begin, end in report.result["looks"] if report.result is not None else ():
        yield from report.collectives[begin:end]


def without(report: RankReport, *kinds: str) -> RankReport:
    """The report without the collectives that served construction ("built"), or the caller's own ends ("callers"), or
    only the suite, to look at what is held in shards ("looks"). All of them, where it is not known: of a rank that did
    not come to its end.
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
