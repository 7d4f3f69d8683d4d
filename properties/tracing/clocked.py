"""A run on gloo processes, timed by the host's clock in milliseconds."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from lockstep.oracle.events import Finish, Step
from lockstep.oracle.program import Scenario
from lockstep.pictures.lanes import Doing, Lane, Lanes, Transfer
from lockstep.properties.tracing.program import last_step
from lockstep.properties.tracing.trace import TRACED, Mark
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Outcome, Passage, RankReport

CLOCK = "Times are those of the host's clock, on gloo processes. They depend on what else the machine does."


def clocked(trial: Trial, scenario: Scenario) -> Outcome:
    """Run the scenario. Raises LawBroken or Refused if not every rank finishes."""
    return trial.run(scenario, timeline=True, function=TRACED).outcome


def lanes(scenario: Scenario, outcome: Outcome, title: str) -> Lanes:
    """The last step by the clock. Real processes do not record the contents of collectives, nor which rank waits."""
    step = last_step(scenario)
    begin = min(mark[3] for report in outcome for mark in _marks(report) if mark[1] in step)

    def ms(time: int) -> float:
        return (time - begin) / 1e6

    drawn = []
    for rank, report in enumerate(outcome):
        marks = [mark for mark in _marks(report) if mark[1] in step]
        drawn.append(Lane(rank, tuple(Doing(k, n, ms(b), ms(e)) for k, n, b, e in _doings(scenario, marks))))
    passages = [[each for each in report.timeline if each.launched >= begin] for report in outcome]
    transfers = []
    for number, met in enumerate(_met(passages), 1):
        first = next(iter(met.values()))
        launched = {rank: ms(each.launched) for rank, each in met.items()}
        ended = max((ms(each.completed) for each in met.values() if each.completed is not None), default=None)
        start = max(launched.values())
        operation = first.collective.operation
        transfers.append(Transfer(number, operation, first.bytes, launched, start, max(start, ended or start)))
    return Lanes(title, CLOCK, tuple(drawn), tuple(transfers))


def _marks(report: RankReport) -> Sequence[Mark]:
    marks: Sequence[Mark] = (report.result or {})["traced"]
    return marks


def _doings(scenario: Scenario, marks: Sequence[Mark]) -> Iterator[tuple[str, str, int, int]]:
    """The kind, name, beginning and end of each activity of a rank."""
    since = 0
    for kind, place, number, when in marks:
        event = scenario.program[place]
        if kind == "begin" or (kind == "forward" and number < 0):
            since = when
        elif kind == "computed" and number < 0:
            yield "forward", "", since, when
            since = when
        elif kind == "end" and event.makes_gradients:
            yield "backward", "", since, when
        elif kind == "end" and isinstance(event, Finish):
            yield "finish", "", since, when
        elif kind == "end" and isinstance(event, Step):
            yield "optimizer", "", since, when


def _met(passages: Sequence[Sequence[Passage]]) -> Iterator[dict[int, Passage]]:
    """The matching calls: those at the same place in the sequence of one group, in rank 0's order."""
    met: dict[tuple[str, int], dict[int, Passage]] = {}
    for rank, own in enumerate(passages):
        places: dict[str, int] = {}
        for each in own:
            group = each.collective.group
            places[group] = places.get(group, -1) + 1
            met.setdefault((group, places[group]), {})[rank] = each
    yield from met.values()


def seconds_of_steps(scenario: Scenario, outcome: Outcome) -> list[float]:
    """For each step but the first, the seconds that the slowest rank spends in its events, from each forward on."""
    ends = [-1, *scenario.places(Step)]
    found = []
    for before, last in list(pairwise(ends))[1:]:
        by_rank = []
        for report in outcome:
            marks = [mark for mark in _marks(report) if before < mark[1] <= last]
            by_rank.append(sum(end - begin for _, _, begin, end in _doings(scenario, marks)) / 1e9)
        found.append(max(by_rank))
    return found


def seconds_under_way(scenario: Scenario, outcome: Outcome) -> float:
    """The median over steps but the first of the seconds during which rank 0 has a collective in flight."""
    marks, steps = _marks(outcome[0]), scenario.places(Step)
    ends: Mapping[int, int] = {mark[1]: mark[3] for mark in marks if mark[0] == "end" and mark[1] in steps}
    found = []
    for begin, end in pairwise(ends[place] for place in steps):
        total = until = 0
        for each in outcome[0].timeline:
            if begin < each.launched <= end and each.completed is not None:
                total += max(0, each.completed - max(until, each.launched))
                until = max(until, each.completed)
        found.append(total / 1e9)
    return median(found) if found else 0.0
