"""A run of a program on the simulated world: the observed acts of each rank, timed by a cost model.

The simulated world gives the order in which a rank computes, launches and waits. The cost model gives the seconds
(`oracle.played`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lockstep.oracle.events import Step
from lockstep.oracle.played import Act, Compute, Key, Launch, Played, Span, Wait, play
from lockstep.oracle.program import Scenario
from lockstep.pictures.lanes import Doing, Lane, Lanes, Transfer
from lockstep.properties.naming import parameter_name
from lockstep.properties.reports.labels import Labels, labels, meanings
from lockstep.properties.tracing.model import CostModel
from lockstep.properties.tracing.program import last_step
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import MESSAGES, Collective, Passage, RankReport

TRACED = "lockstep.properties.ranks.traced:trace_program"
WEIGHED = "lockstep.properties.ranks.held_bytes:weigh_program"
MOST_ELEMENTS = 5_000  # the largest program whose collectives are recorded number by number
Mark = tuple[str, int, int, int]  # see `properties.ranks.traced.Traced`


@dataclass(frozen=True)
class Call:
    """A rank's part in a collective: its times, and its input if that was recorded."""

    passage: Passage
    asked: Collective


@dataclass(frozen=True)
class Trace:
    """The last step of a run with times.

    By rank: ``calls``, its collectives; ``held``, pairs of seconds and the bytes that the implementation holds then,
    including gradients, if they were counted.
    """

    scenario: Scenario
    played: Played
    calls: tuple[Mapping[Key, Call], ...]
    held: tuple[tuple[tuple[Fraction, int], ...], ...]

    @property
    def bytes(self) -> int:
        """The bytes that the rank with the most traffic puts into collectives."""
        return max((sum(call.passage.bytes for call in calls.values()) for calls in self.calls), default=0)


def trace(trial: Trial, scenario: Scenario, model: CostModel, looks_inside: bool = True) -> Trace:
    """Run the scenario and time its last step.

    ``looks_inside``: also record contents of collectives, and bytes held. Raises LawBroken or Refused if not every rank
    finishes.
    """
    inside = looks_inside and sum(each.count for each in scenario.parameters) <= MOST_ELEMENTS
    seen = trial.run(scenario, contents=inside, timeline=True, function=TRACED).outcome
    calls = [_calls(scenario, report) for report in seen]
    acts = [list(_acts(scenario, report, by_key, model)) for report, by_key in zip(seen, calls, strict=True)]
    known = {key: call.passage for by_key in calls for key, call in by_key.items()}
    members = {key: passage.members for key, passage in known.items()}
    played = play(acts, members, {key: model.collective(passage) for key, passage in known.items()})
    held: list[tuple[tuple[Fraction, int], ...]] = [()] * len(seen)
    if looks_inside:
        weighed = trial.run(scenario, function=WEIGHED).outcome
        held = [tuple(_held(scenario, *each)) for each in zip(seen, weighed, played.ranks, strict=True)]
    return Trace(scenario, played, tuple(calls), tuple(held))


def lanes(trace: Trace, title: str, model: CostModel) -> Lanes:
    """The picture of a trace."""
    numbers = {travel.collective: number for number, travel in enumerate(trace.played.travels, 1)}
    called = [labels(trace.scenario, trace.scenario.role(rank)) for rank in range(trace.scenario.world_size)]
    carried = {key: _carried(trace, key, called) for key in numbers}
    drawn = []
    for rank, spans in enumerate(trace.played.ranks):
        doings = tuple(Doing(span.kind, _what(span, numbers), *_ms(span.start, span.end)) for span in spans)
        drawn.append(Lane(rank, doings, tuple((float(1000 * when), count) for when, count in trace.held[rank])))
    transfers = []
    for travel in trace.played.travels:
        contents, clash = carried[travel.collective]
        call = next(calls[travel.collective] for calls in trace.calls if travel.collective in calls)
        launched = {rank: float(1000 * when) for rank, when in travel.launched.items()}
        at = _ms(travel.start, travel.end)
        number = numbers[travel.collective]
        operation, count = call.passage.collective.operation, call.passage.bytes
        transfers.append(Transfer(number, operation, count, launched, *at, contents, clash))
    played = trace.played
    facts = {
        "step": f"{float(1000 * played.step):.3f} ms",
        "computing": f"{float(100 * played.compute_share):.0f} % of the step",
        "collectives": f"{len(played.travels)}, {trace.bytes:,} bytes per rank",
        "overlap": f"{float(100 * played.overlap):.0f} % of communication is hidden behind computing",
    }
    if clashes := [str(each.number) for each in transfers if each.clash]:
        facts["wrong"] = f"different parameters meet in {', '.join(clashes)}"
    return Lanes(title, model.words(), tuple(drawn), tuple(transfers), facts)


def _ms(start: Fraction, end: Fraction) -> tuple[float, float]:
    return float(1000 * start), float(1000 * end)


def _what(span: Span, numbers: Mapping[Key, int]) -> str:
    """The parameters that are computed, or the number of the collective that is waited for."""
    return span.name if span.collective is None else str(numbers[span.collective])


def _window(scenario: Scenario, report: RankReport) -> tuple[list[Mark], int, int]:
    """The records of the last step, with its beginning and end."""
    step = last_step(scenario)
    marks = [mark for mark in (report.result or {})["traced"] if mark[1] in step]
    return marks, marks[0][3], marks[-1][3]


def _calls(scenario: Scenario, report: RankReport) -> dict[Key, Call]:
    """A rank's collectives of the last step, by group and place in it."""
    _, begin, end = _window(scenario, report)
    asked = [call for call in report.collectives if call.operation not in MESSAGES]
    found, issued = dict[Key, Call](), Counter[str]()
    for passage, call in zip(report.timeline, asked, strict=True):
        if begin <= passage.launched <= end:
            found[call.group, issued[call.group]] = Call(passage, call)
            issued[call.group] += 1
    return found


def _acts(scenario: Scenario, report: RankReport, calls: Mapping[Key, Call], model: CostModel) -> Iterator[Act]:
    """The acts of a rank in the last step, in order. Computations are placed at the moments of their ends."""
    marks, _, end = _window(scenario, report)
    happened: list[tuple[int, Act]] = []
    for kind, place, number, when in marks:
        if kind == "computed":
            if its := _of_unit(scenario, number):
                seconds = sum((model.forward(scenario.parameters[each]) for each in its), Fraction(0))
                happened.append((when, Compute("forward", ", ".join(map(parameter_name, its)), seconds)))
        elif kind == "gradient":
            seconds = model.gradient(scenario.parameters[number])
            happened.append((when, Compute("backward", parameter_name(number), seconds)))
        elif kind == "begin" and isinstance(scenario.program[place], Step):
            happened.append((when, Compute("optimizer", "", model.optimizer(scenario.parameters))))
    for key, call in calls.items():
        happened.append((call.passage.launched, Launch(key)))
        if call.passage.waited is not None and call.passage.waited <= end and not call.passage.polled:
            happened.append((call.passage.waited, Wait(key)))
    yield from (act for _, act in sorted(happened, key=lambda each: each[0]))


def _of_unit(scenario: Scenario, unit: int) -> list[int]:
    """The parameters of a unit; -1: those of the root."""
    return [index for index in range(len(scenario.parameters)) if scenario.unit(index) == (None if unit < 0 else unit)]


def _held(
    scenario: Scenario, traced: RankReport, weighed: RankReport, spans: Sequence[Span]
) -> Iterator[tuple[Fraction, int]]:
    """The bytes that a rank held at the end of each computation. Both runs recorded the same moments."""
    assert weighed.result is not None
    totals, seen = weighed.result["bytes"], dict[tuple[int, str, int], list[int]]()
    for place, moments in weighed.result["moments"].items():
        for kind, which, ours, whole in moments:
            seen.setdefault((place, kind, which), []).append(ours + whole)
    ends = iter([span.end for span in spans if span.kind != "wait"])
    marks, *_ = _window(scenario, traced)
    for kind, place, number, _ in marks:
        if kind == "gradient":
            yield next(ends), seen[place, kind, number].pop(0)
        elif kind == "computed" and _of_unit(scenario, number):
            yield next(ends), seen[place, "forward", number].pop(0)
        elif kind == "begin" and isinstance(scenario.program[place], Step):
            yield next(ends), totals[place]


def _carried(trace: Trace, key: Key, called: Sequence[Labels]) -> tuple[dict[int, str], bool]:
    """For each rank, the parameters whose gradients a collective carries; and true if different ones meet in it."""
    sent = {rank: calls[key].asked.sent for rank, calls in enumerate(trace.calls) if key in calls}
    numbers = {rank: values.tolist() for rank, values in sent.items() if values is not None}
    if len(numbers) < len(sent) or trace.calls[min(sent)][key].asked.reduction == "":
        return {}, False
    named, apart = meanings(numbers, {rank: called[rank] for rank in numbers})
    owners = {rank: dict.fromkeys(name.partition("[")[0] for name in row if name) for rank, row in named.items()}
    return {rank: ", ".join(names) for rank, names in owners.items()}, any(apart)
