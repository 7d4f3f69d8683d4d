"""The full tensors on a rank during forward and backward, at stages 2 and 3, if the layout of slices is claimed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.judging.slices import Ledger, flats

# A moment: the "forward" of a unit (-1: the root) is about to begin, or the "gradient" of a tensor has become final.
When = tuple[str, int]


@dataclass(frozen=True)
class Moment:
    """The bytes at a moment.

    ``held``: all bytes but those of full gradients and of autograd; None if not specified. ``gradients``: the bytes of
    full gradients.
    """

    held: int | None
    gradients: int


def ledgers(scenario: Scenario, expected: Expectation, stage: int, slices: str, rank: int) -> dict[int, Ledger]:
    """The tensors that a rank holds when each Backward begins, by its place."""
    ledger, found = Ledger(scenario, stage, slices, rank), dict[int, Ledger]()
    for place, event in enumerate(scenario.program):
        if event.makes_gradients:
            found[place] = replace(ledger, whole=set(ledger.whole), own=set(ledger.own))
        ledger.after(place, expected)
    return found


def moments(ledger: Ledger, place: int, whens: Sequence[When]) -> list[Moment]:
    """The full tensors at each moment of a Backward that begins with this ledger.

    Stage 3: the root's own parameters are full while anything runs, together with those of one unit. Gradients are
    reduced at the last call of their unit in backward. Stage 2: the gradients of a bucket are reduced when the last
    trainable one is final and all earlier buckets are reduced.
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
        known = calls[now][0] == inside  # otherwise the root runs, and the last unit may be full or not
        whole_units |= {-1, inside}
        to_come = _of_units(scenario, ledger.slices, {unit for unit, _ in calls[: now + 1]} | whole_units)
        left = _of_units(scenario, ledger.slices, {unit for unit, _ in calls[now + 1 :]}) - to_come
        gone = left - ledger.frozen if _synchronizes(ledger, place) else set()
    rest = replace(ledger, own=ledger.own | gone).total(gradients=False)
    gathered = _bytes(scenario, _of_units(scenario, ledger.slices, whole_units))
    return Moment(rest + gathered if known else None, _bytes(scenario, (ledger.whole | {*final}) - gone))


def _calls(scenario: Scenario, place: int, rank: int) -> list[tuple[int, set[int]]]:
    """The calls of units in forward, each with the tensors that it uses. -1: tensors that the root uses in between."""
    batch = scenario.batch(place)
    runs = groupby(reversed(scenario.order(batch, rank)), lambda index: _unit(scenario, index))
    return [(unit, {scenario.tensor(index) for index in run}) for unit, run in runs]


def _unit(scenario: Scenario, index: int) -> int:
    unit = scenario.unit(index)
    return -1 if unit is None else unit


def _of_units(scenario: Scenario, slices: str, units: set[int]) -> set[int]:
    """The tensors gathered for these units. A tied tensor includes all tensors that are split together with it."""
    mine = {scenario.tensor(index) for index in range(len(scenario.parameters)) if _unit(scenario, index) in units}
    return {tensor for members in flats(scenario, slices) if mine & {*members} for tensor in members}


def _synchronizes(ledger: Ledger, place: int) -> bool:
    return ledger.scenario.standings[place + 1].unfinished


def _bytes(scenario: Scenario, tensors: Iterable[int]) -> int:
    return sum(scenario.parameters[tensor].nbytes for tensor in tensors)
