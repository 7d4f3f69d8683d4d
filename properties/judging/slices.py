"""The exact bytes of every rank, if the layout of slices is claimed: `oracle.shards.flat`, `oracle.zero`.

Parameters are concatenated and cut into equal slices, of which the last may be short or empty; nothing is padded.

- "units": the parameters of each unit in the order of registration, separately by dtype, and by trainable or frozen at
  the start.
- "buckets": the same for the whole module in reverse order, with a new bucket if the cap would be exceeded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from lockstep.oracle.buckets import filled
from lockstep.oracle.events import Backward, Finish, Freeze, Step, ZeroGrad
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.oracle.shards import Layout, by_layer, flat, numel
from lockstep.oracle.zero import Memory, Plan, held
from lockstep.properties.judging.fair_share import recipe_of

BYTES_OF_A_COUNT = 4  # of the step count: a float32 for each parameter, on every rank


def registered(scenario: Scenario) -> list[int]:
    """The tensors in the order of registration: the root's own first, then those of each unit; each tensor once."""
    told = scenario.registered or range(len(scenario.parameters))
    order = sorted(told, key=lambda index: -1 if (unit := scenario.unit(index)) is None else unit)
    return list(dict.fromkeys(map(scenario.tensor, order)))


def flats(scenario: Scenario, slices: str) -> list[tuple[int, ...]]:
    """The groups of tensors that are concatenated and cut together. Buckets are in the order in which they are sent."""
    tensors = registered(scenario)
    if slices == "buckets":
        return _cut_apart(scenario, tensors[::-1], scenario.bucket_cap)
    homes: dict[int | None, list[int]] = {}
    for tensor in tensors:
        within = {scenario.unit(index) for index in scenario.names(tensor)}
        home = None if None in within else min(unit for unit in within if unit is not None)
        homes.setdefault(home, []).append(tensor)
    return [each for own in homes.values() for each in _cut_apart(scenario, own, None)]


def _cut_apart(scenario: Scenario, tensors: list[int], cap: int | None) -> list[tuple[int, ...]]:
    """Groups by dtype and up to a cap: first those of tensors trainable from the start, then those of frozen ones."""
    trained = [tensor for tensor in tensors if scenario.parameters[tensor].trainable]
    frozen = [tensor for tensor in tensors if not scenario.parameters[tensor].trainable]
    return [*filled(scenario, trained, cap), *filled(scenario, frozen, cap)]


@lru_cache(maxsize=8)
def cuts(scenario: Scenario, slices: str) -> Mapping[int, Layout]:
    """For each tensor, the parts that each rank of a shard group owns."""
    found: dict[int, Layout] = {}
    for members in flats(scenario, slices):
        whole = flat({str(each): scenario.parameters[each].shape for each in members}, _shards(scenario))
        whole = replace(whole, padded=whole.counts, state=whole.counts)
        found |= dict(zip(members, by_layer(whole, [[str(each)] for each in members]), strict=True))
    return found


def _shards(scenario: Scenario) -> int:
    return scenario.world_size // scenario.replicas


@dataclass
class Ledger:
    """The tensors of one rank: those whose full gradient it has, and those of whose mean it has its slice."""

    scenario: Scenario
    stage: int
    slices: str
    rank: int
    whole: set[int] = field(default_factory=set)
    own: set[int] = field(default_factory=set)
    frozen: set[int] = field(default_factory=set)
    averaged: bool = False  # stage 1: the slices are parts of the full gradients
    states: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frozen |= {index for index, parameter in enumerate(self.scenario.parameters) if not parameter.trainable}

    def total(self, gradients: bool = True) -> int:
        """The bytes of everything, or of everything but full gradients."""
        buffers = 4 * sum(numel(buffer.shape) for buffer in self.scenario.buffers)
        return buffers + sum(self._of(tensor, gradients) for tensor in cuts(self.scenario, self.slices))

    def _of(self, tensor: int, gradients: bool) -> int:
        state = self.states.get(tensor, {})
        recipe = recipe_of(self.scenario, tensor, state)
        plan = Plan((cuts(self.scenario, self.slices)[tensor],), self.stage, recipe, self.scenario.replicas)
        now = Memory(whole_gradients={0} if gradients and tensor in self.whole else set())
        now.own_gradients = {0} if tensor in self.own and not self.averaged else set()
        return held(plan, now, self.rank).total + (BYTES_OF_A_COUNT if "step" in state else 0)

    def after(self, place: int, expected: Expectation) -> bool:
        """Apply an event. False if the bytes held after it are not known, because gradients are being synchronized."""
        event = self.scenario.program[place]
        match event:
            case Backward():
                self.averaged = False
                if event.zeroes is not None and event.zeroes.set_to_none:
                    self.whole, self.own = set(), set()
                used = self.scenario.order(self.scenario.batch(place), self.rank)
                self.whole |= {self.scenario.tensor(index) for index in used}
                return not event.synchronize
            case Finish():
                there = {each for each, value in enumerate(expected.gradients[place]) if value is not None}
                there &= cuts(self.scenario, self.slices).keys()  # without further names of the same tensors
                self.own, self.averaged = there, self.stage == 1
                self.whole = there if self.stage == 1 else set()
            case Step():
                self.states = dict(enumerate(expected.states[place]))
            case ZeroGrad(set_to_none=True):
                self.whole, self.own = set(), set()
            case Freeze():
                self.frozen = event.of_frozen(self.frozen)
        return True


def held_between(scenario: Scenario, expected: Expectation, stage: int, slices: str) -> dict[int, tuple[int, ...]]:
    """The bytes of each rank after construction (-1) and after every event, except a synchronizing Backward."""
    ledgers = [Ledger(scenario, stage, slices, rank) for rank in range(scenario.world_size)]
    found = {-1: tuple(ledger.total() for ledger in ledgers)}
    for place in range(len(scenario.program)):
        # A list, because each ledger must apply the event.
        known = [ledger.after(place, expected) for ledger in ledgers]
        if all(known):
            found[place] = tuple(ledger.total() for ledger in ledgers)
    return found
