"""For the tests of the strategies: claims to draw for, and what may hold of a scenario."""

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from lockstep.oracle.events import Backward, Clip, Evaluate, Event, Join, SetHyperparameters, Step
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.program import Scenario
from lockstep.oracle.state import Inside
from lockstep.properties.claims import Claims
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.independent import sample
from lockstep.properties.strategies.traits import buckets, sent

Holds = Callable[[Scenario], Any]

ALL = Claims(
    bucket_cap=True,
    several_dtypes=True,
    unused="untouched",
    idle_ranks=True,
    several_forwards=True,
    measures_late=True,
    direct_forwards=True,
    ends_in_no_sync=True,
    losses_read=True,
    double_backward=True,
    callers_collectives=True,
    survives_errors=True,
    freezing=True,
    unfreezing=True,
    tied_parameters=True,
    outside_reads=True,
    buffers="initial",
    sixteen_bits=True,
    strided_parameters=True,
    empty_parameters=True,
    replaced_parameters=True,
    replaced_gradients=True,
    moved_parameters=True,
    copied_models=True,
    drops_losses=True,
    acts_alone=True,
    replicas=True,
    subgroups=True,
    joins=DIVISORS,
    optimizer_before=True,
    stands_for_model=True,
    leaves_random_numbers=True,
    callers_hooks=True,
    module_hooks=True,
    final_in_hooks=True,
)
PLAIN = Claims(accumulation=False)


def drawn(claims: Claims, count: int = 1500, has: tuple[str, ...] = ()) -> Iterator[Scenario]:
    """So many scenarios of those claims, always the same, and drawn when they are asked for: most of what is looked for
    is among the first.
    """
    size = min(count, 50)
    parts = (_part(claims, size, has, part) for part in range(-(-count // size)))
    return itertools.islice(itertools.chain.from_iterable(parts), count)


@cache
def _part(claims: Claims, size: int, has: tuple[str, ...], part: int) -> list[Scenario]:
    return sample(exact_scenarios(claims, has=has), size, seed_value=part)


def synchronizing(scenario: Scenario) -> list[Backward]:
    return [batch for batch in scenario.microbatches if batch.synchronize]


def cap_off_by(shift: int) -> Holds:
    return lambda s: s.bucket_cap in {parameter.nbytes + shift for parameter in s.parameters}


def present_differs(batch: Backward) -> bool:
    return len({frozenset(order) for order in batch.orders}) > 1


def windows(scenario: Scenario) -> list[list[Backward]]:
    """The micro-batches of each window of a join."""
    found: list[list[Backward]] = []
    for event in scenario.program:
        if isinstance(event, Join):
            found.append([])
        elif isinstance(event, Backward) and found:
            found[-1].append(event)
    return found


def first_gone(window: list[Backward]) -> tuple[int, ...]:
    return next((batch.gone for batch in window if batch.gone), ())


def has(kind: type[Event], **values: Any) -> Holds:
    """Whether there is such an event, with those values."""
    return lambda s: any(
        isinstance(event, kind) and all(getattr(event, name) == value for name, value in values.items())
        for event in s.program
    )


def norm_at(relation: Callable[[float, float], bool]) -> Holds:
    """Whether gradients are clipped to a norm that relates to theirs like that."""

    def holds(scenario: Scenario) -> bool:
        norms = interpret(scenario, unused="untouched").norms
        clips = {place: event for place, event in enumerate(scenario.program) if isinstance(event, Clip)}
        return any(
            not isinstance(norm, Inside) and norm is not None and relation(clips[place].max_norm, float(norm))
            for place, norm in norms.items()
        )

    return holds


def used_twice(scenario: Scenario) -> bool:
    """True if some rank's forward calls a submodule, then another module, then the first again."""
    calls = (
        [unit for unit, _ in itertools.groupby(map(scenario.reader, order))]
        for batch in scenario.microbatches
        for order in batch.orders
    )
    return any(call.count(unit) > 1 for call in calls for unit in call if unit is not None)


def of_one_dtype(scenario: Scenario) -> bool:
    return len({parameter.dtype for parameter in scenario.parameters}) == 1


def shares_a_bucket(scenario: Scenario) -> bool:
    """True if some bucket has several tensors."""
    return len(buckets(scenario)) < len(sent(scenario))


def used_only_earlier(scenario: Scenario) -> bool:
    """True if no rank uses a tensor in the last micro-batch of a window, and some rank does in an earlier one."""
    earlier: set[int] = set()
    for event in scenario.program:
        if isinstance(event, Backward):
            used = {scenario.tensor(parameter) for order in event.orders for parameter in order}
            if event.synchronize and earlier - used:
                return True
            earlier = set() if event.synchronize else earlier | used
        elif not isinstance(event, Evaluate):
            earlier = set()
    return False


def tied_across_units(scenario: Scenario) -> bool:
    pairs = ((scenario.unit(index), scenario.unit(scenario.tensor(index))) for index in range(len(scenario.parameters)))
    return any(one != other and None not in (one, other) for one, other in pairs)


def skips_a_step_in_the_middle(scenario: Scenario) -> bool:
    """True if of three steps in a row the second alone is skipped."""
    steps = [place for place, event in enumerate(scenario.program) if isinstance(event, Step)]
    skipped = [bool(scenario.overflowed(place)) for place in steps]
    return any(three == (False, True, False) for three in zip(skipped, skipped[1:], skipped[2:], strict=False))


def in_order(*kinds: type[Event]) -> Holds:
    """Whether events of these kinds come in this order, whatever is between them."""

    def holds(scenario: Scenario) -> bool:
        left = iter(map(type, scenario.program))
        return all(kind in left for kind in kinds)

    return holds


def sets_after_a_step(scenario: Scenario, option: str) -> bool:
    changes = (
        place
        for place, event in enumerate(scenario.program)
        if isinstance(event, SetHyperparameters) and getattr(event.values, option)
    )
    return any(Step() in scenario.program[:place] and Step() in scenario.program[place:] for place in changes)
