"""Traits of scenarios beside their features. No law asks for them by name."""

from collections.abc import Callable
from math import inf

from lockstep.oracle.buckets import filled
from lockstep.oracle.events import Step
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.program import Scenario
from lockstep.properties.events.backward import hook_orders_differ


def sent(scenario: Scenario) -> list[int]:
    """The tensors whose gradients are communicated: trainable ones with at least one element."""
    told = enumerate(scenario.parameters)
    return [index for index, each in told if each.trainable and each.tied is None and each.count]


def buckets(scenario: Scenario) -> list[int]:
    """The bytes in each bucket, if buckets are filled greedily from the last trainable tensor to the first."""
    members = filled(scenario, reversed(sent(scenario)), scenario.bucket_cap)
    return [sum(scenario.parameters[each].nbytes for each in bucket) for bucket in members]


def is_ragged(scenario: Scenario) -> bool:
    """True if the last bucket is smaller than each of the others."""
    *others, last = buckets(scenario) or [0]  # empty if nothing is sent
    return bool(others) and last < min(others)


def cap_beyond_a_parameter(elements: int) -> Callable[[Scenario], bool]:
    """A trait: the cap is larger than some parameter by so many elements."""

    def holds(scenario: Scenario) -> bool:
        sizes = {each.nbytes + elements * FORMATS[each.dtype].bytes for each in scenario.parameters}
        return scenario.bucket_cap in sizes

    return holds


def _buckets(least: int, most: float = inf) -> Callable[[Scenario], bool]:
    return lambda scenario: scenario.bucket_cap is not None and least <= len(buckets(scenario)) <= most


def _steps(least: int, most: float = inf) -> Callable[[Scenario], bool]:
    return lambda scenario: least <= scenario.program.count(Step()) <= most


TRAITS: dict[str, Callable[[Scenario], bool]] = {
    "cap, 1 bucket": _buckets(1, 1),
    "cap, 2 buckets": _buckets(2, 2),
    "cap, 3 buckets or more": _buckets(3),
    "cap, the last bucket ragged": lambda scenario: scenario.bucket_cap is not None and is_ragged(scenario),
    "cap as large as a parameter": cap_beyond_a_parameter(0),
    "cap 1 element smaller": cap_beyond_a_parameter(-1),
    "cap 1 element larger": cap_beyond_a_parameter(1),
    "no step": _steps(0, 0),
    "1 step": _steps(1, 1),
    "2 steps": _steps(2, 2),
    "3 steps or more": _steps(3),
    "hook orders differ": hook_orders_differ,
}
