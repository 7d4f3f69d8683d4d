"""The whole tensors on a rank while forward and backward run, at stages 2 and 3, if the layout of slices is claimed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.judging.slices import Ledger, flats

# A moment: "forward" of a unit (-1: the root) is about to begin, or a tensor's "gradient" has just become final.
When = tuple[str, int]


@dataclass(frozen=True)
class Moment:
    """``held``: bytes of everything but whole gradients and what autograd keeps; None: it is not said how many.

    ``gradients``: bytes of whole gradients.
    """

    held: int | None
    gradients: int


def ledgers(scenario: Scenario, expected: Expectation, stage: int, slices: str, rank: int) -> dict[int, Ledger]:
    """The holdings of a rank when a Backward begins, by its place."""
    ledger, found = Ledger(scenario, stage, slices, rank), dict[int, Ledger]()
    for place, event in enumerate(scenario.program):
        if event.makes_gradients:
            found[place] = replace(ledger, whole=set(ledger.whole), own=set(ledger.own))
        ledger.after(place, expected)
    return found


def moments(ledger: Ledger, place: int, whens: Sequence[When]) -> list[Moment]:
    """The whole tensors at each moment of a Backward that begins with this ledger.

    Stage 3: the root's own parameters are whole while anything runs, and beside them those of one unit; gradients are
    reduced with the last call of their unit that backward leaves. Stage 2: those of a bucket, with the last of its
    members that is trained, if all buckets before it are reduced.
    """
    of_stage = _stage_three if ledger.stage == 3 else _stage_two
    return [of_stage(ledger, place, when, _gradients(whens[: number + 1])) for number, when in enumerate(whens)]


def _gradients(whens: Iterable[When]) -> list[int]:
    return [tensor for kind, tensor in whens if kind == "gradient"]


def _stage_two(ledger: Ledger, place: int, when: When, final: Sequence[int]) -> Moment:
    before = set(final[:-1] if when[0] == "gradient" else final)
    gone: set[int] = set()
    for bucket in flats(ledger.scenario, ledger.slices) if _synchronizes(ledger, place) else ():
        trained = set(bucket) - ledger.frozen
        if not trained <= before:
            break
        gone |= trained
    return Moment(None, _bytes(ledger.scenario, (ledger.whole | {*final}) - gone))


def _stage_three(ledger: Ledger, place: int, when: When, final: Sequence[int]) -> Moment:
    scenario, (kind, which) = ledger.scenario, when
    whole_units = {-1} if kind == "forward" else set()
    gone: set[int] = set()
    known = True
    if kind == "forward":
        whole_units.add(which)
    else:
        calls = _calls(scenario, place, ledger.rank)
        now = min(number for number, (_, tensors) in enumerate(calls) if which in tensors)
        inside = next((unit for unit, _ in calls[now:] if unit >= 0), -1)
        known = calls[now][0] == inside  # else it is the root's turn, and what was left last may be whole or not
        whole_units |= {-1, inside}
        to_come = _of_units(scenario, ledger.slices, {unit for unit, _ in calls[: now + 1]} | whole_units)
        left = _of_units(scenario, ledger.slices, {unit for unit, _ in calls[now + 1 :]}) - to_come
        gone = left - ledger.frozen if _synchronizes(ledger, place) else set()
    rest = replace(ledger, own=ledger.own | gone).total(gradients=False)
    gathered = _bytes(scenario, _of_units(scenario, ledger.slices, whole_units))
    return Moment(rest + gathered if known else None, _bytes(scenario, (ledger.whole | {*final}) - gone))


def _calls(scenario: Scenario, place: int, rank: int) -> list[tuple[int, set[int]]]:
    """The calls of units in forward (-1: what the root uses in between), each with the tensors that it uses."""
    batch = scenario.batch(place)
    runs = groupby(reversed(scenario.order(batch, rank)), lambda index: _unit(scenario, index))
    return [(unit, {scenario.tensor(index) for index in run}) for unit, run in runs]


def _unit(scenario: Scenario, index: int) -> int:
    unit = scenario.unit(index)
    return -1 if unit is None else unit


def _of_units(scenario: Scenario, slices: str, units: set[int]) -> set[int]:
    """The tensors gathered for these units: a tied tensor brings along those with which it is cut."""
    mine = {scenario.tensor(index) for index in range(len(scenario.parameters)) if _unit(scenario, index) in units}
    return {tensor for members in flats(scenario, slices) if mine & {*members} for tensor in members}


def _synchronizes(ledger: Ledger, place: int) -> bool:
    return ledger.scenario.standings[place + 1].unfinished


def _bytes(scenario: Scenario, tensors: Iterable[int]) -> int:
    return sum(scenario.parameters[tensor].nbytes for tensor in tensors)
