"""Compares what was observed with what must be: bits, or membership in a proved interval where the oracle gives one.

None, zero and -0.0 are told apart.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oracle.formats import FORMATS
from oracle.interpreter import Expectation
from oracle.program import Scenario
from oracle.state import Inside
from properties.gathered import Moment
from properties.naming import parameter_name
from properties.trial import Run, Trial
from properties.verdict import Crashes, Difference, SilentlyWrong, Wasteful
from worlds.contract import MESSAGES, Collective

# What `pairs` tells of; any other quantity is a piece of optimizer state, called as in torch.
QUANTITIES = ("parameter", "gradient", "norm", "loss scale", "buffer")


def by_the_oracle(trial: Trial, scenario: Scenario, headline: str) -> None:
    """Runs a scenario; every value is what the oracle says, of an implementation with these claims."""
    values_equal(trial.run(scenario), trial.expected(scenario), headline)


def values_equal(run: Run, expected: Expectation, headline: str, of: Collection[str] = ()) -> None:
    """Every rank holds, after construction and after each event, whatever the expectation says of that moment.

    ``of``: of these alone, each one of ``QUANTITIES`` or "state"; empty: of all.
    """
    for place in (-1, *range(len(run.scenario.program))):
        for rank, seen in enumerate(run.observations):
            told = () if rank in run.scenario.gone(place) else pairs(seen, expected, place, rank)
            for quantity, actual, wanted in told:
                if not of or (quantity if quantity in QUANTITIES else "state") in of:
                    compare(run, headline, quantity, place, rank, actual, wanted)


def pairs(
    seen: Mapping[str, Any], expected: Expectation, place: int, rank: int
) -> Iterator[tuple[str, Sequence[Any], Sequence[Any]]]:
    """What a rank showed after an event and what it must be: a quantity, and its values by parameter or buffer."""
    if place < 0:
        yield "parameter", seen["initial"], expected.initial
    if place in expected.gradients:
        yield "gradient", seen["gradients"][place], expected.gradients[place]
    if place in expected.norms:
        yield "norm", [seen["norms"][place]], [expected.norms[place]]
    if place in expected.parameters:
        yield "parameter", seen["parameters"][place], expected.parameters[place]
    if place in expected.states:
        ours, theirs = seen["states"][place], expected.states[place]
        for name in dict.fromkeys(name for state in (*ours, *theirs) for name in state):
            yield name, [state.get(name) for state in ours], [state.get(name) for state in theirs]
    if place in expected.loss_scales:
        yield "loss scale", [np.asarray(seen["loss_scales"][place])], [np.asarray(expected.loss_scales[place])]
    if place in expected.buffers:
        yield "buffer", seen["buffers"][place], expected.buffers[place][rank]


def replicas_equal(run: Run, headline: str) -> None:
    """Every rank holds, bit for bit, the parameters that rank 0 holds, after construction and after each Step, and then
    also rank 0's optimizer state.
    """
    first, *others = run.observations
    for rank, seen in enumerate(others, 1):
        compare(run, headline, "parameter", -1, rank, seen["initial"], first["initial"])
    for place in first["parameters"]:
        for rank, seen in enumerate(others, 1):
            compare(run, headline, "parameter", place, rank, seen["parameters"][place], first["parameters"][place])
    states_equal(run, headline)


def nothing_in_flight_is_touched(run: Run, headline: str) -> None:
    """No rank used, changed or dropped what a collective in flight reads or writes; see `worlds.contract.Hazard`."""
    hazards = next((report.hazards for report in run.outcome if report.hazards), ())
    if hazards:
        words = f"{headline} {'; '.join(map(str, hazards[:2]))}.".replace(f"{Path.cwd()}/", "")
        raise SilentlyWrong(words, run.scenario, run.outcome, choices=run.choices)


def states_equal(run: Run, headline: str) -> None:
    """Every rank holds, bit for bit, the optimizer state that rank 0 holds, after each Step."""
    first, *others = run.observations
    for place, mine in first["states"].items():
        for rank, seen in enumerate(others, 1):
            theirs = seen["states"][place]
            for name in dict.fromkeys(name for state in (*mine, *theirs) for name in state):
                actual, wanted = ([state.get(name) for state in states] for states in (theirs, mine))
                compare(run, headline, name, place, rank, actual, wanted)


def starts_equal(run: Run, initial: Sequence[Any], headline: str) -> None:
    """Every rank holds these parameters after construction."""
    for rank, seen in enumerate(run.observations):
        compare(run, headline, "parameter", -1, rank, seen["initial"], initial)


def runs_equal(run: Run, reference: Run, headline: str, factor: float = 1.0) -> None:
    """Every rank of the run has the gradients, times ``factor``, and the parameters of the reference's rank 0."""
    gradients_equal(run, reference, {place: place for place in run.observations[0]["gradients"]}, factor, headline)
    for rank, seen in enumerate(run.observations):
        for place, values in seen["parameters"].items():
            wanted = reference.observations[0]["parameters"][place]
            compare(run, headline, "parameter", place, rank, values, wanted)


def gradients_equal(run: Run, reference: Run, places: Mapping[int, int], factor: float, headline: str) -> None:
    """At each of the places, every rank has the gradients of the reference's rank 0 at another one, times a power of
    two: after a synchronization all ranks have the same.
    """
    for rank, seen in enumerate(run.observations):
        for place, other in places.items():
            wanted = reference.observations[0]["gradients"][other]
            wanted = [None if each is None else each * each.dtype.type(factor) for each in wanted]
            compare(run, headline, "gradient", place, rank, seen["gradients"][place], wanted)


def bytes_held(run: Run, shares: Mapping[int, tuple[int, int]], headline: str) -> None:
    """All ranks together hold no more than the most, after each of these events, and no less than the least."""
    for place, (least, most) in shares.items():
        each = [seen["bytes"][place] for seen in run.observations]
        if not least <= sum(each) <= most:
            wanted = f"{least}" if least == most else f"between {least} and {most}"
            words = f"{headline} {_after(place)} ranks hold {' + '.join(map(str, each))} = {sum(each)} bytes"
            raise Wasteful(f"{words} where it must be {wanted}.", run.scenario, run.outcome)


def _after(place: int) -> str:
    return "After construction" if place < 0 else f"After event {place}"


def slices_held(run: Run, shares: Mapping[int, tuple[int, ...]], headline: str) -> None:
    """Each rank holds so many bytes after each of these events."""
    for place, wanted in shares.items():
        each = [seen["bytes"][place] for seen in run.observations]
        for rank, (seen, right) in enumerate(zip(each, wanted, strict=True)):
            if seen != right:
                words = f"{headline} {_after(place)} rank {rank} holds {seen} bytes where it must be {right}."
                raise Wasteful(words, run.scenario, run.outcome)


def whole_at_a_time(run: Run, rank: int, place: int, wanted: Sequence[Moment], headline: str) -> None:
    """At each moment of a Backward a rank holds what it must."""
    for (kind, which, held, gradients), right in zip(run.observations[rank]["moments"][place], wanted, strict=True):
        when = f"when {parameter_name(which)}.grad becomes final"
        if kind == "forward":
            when = f"when {'the forward' if which < 0 else f'forward of unit{which}'} begins"
        rest = "beside whole gradients and what autograd keeps"
        for seen, must, what in ((gradients, right.gradients, "of whole gradients"), (held, right.held, rest)):
            if must is not None and seen != must:
                words = f"{headline} In event {place}, {when}, rank {rank} holds {seen} bytes {what}"
                raise Wasteful(f"{words} where it must be {must}.", run.scenario, run.outcome)


def same_collectives(run: Run, headline: str) -> None:
    """In every group that ranks used, those issued the same collectives in the same order; in the default one, all.

    Messages between two ranks are left out: the world pairs them.
    """
    for group in dict.fromkeys(["default", *(call.group for calls in run.collectives for call in calls)]):
        by_rank = {
            rank: tuple(call for call in calls if call.group == group and call.operation not in MESSAGES)
            for rank, calls in enumerate(run.collectives)
        }
        first, *others = (rank for rank, calls in by_rank.items() if calls or group == "default")
        for rank in others:
            _same_sequence(run, headline, (f"rank {first}", by_rank[first]), (f"rank {rank}", by_rank[rank]))


def silent_inside_no_sync(run: Run, reference: Run, headline: str) -> None:
    """Ranks issue nothing in a micro-batch inside `no_sync`, unless the whole run issues the same without those.

    Then it is something due anyhow, such as parameters that the next forward waits for. Of stage 3 only reductions
    count: in every micro-batch it puts parameters together besides, by gathering or broadcasting.
    """
    for rank, (mine, theirs) in enumerate(zip(run.collectives, reference.collectives, strict=True)):
        inside = [call for begin, end in run.observations[rank]["local"] for call in mine[begin:end]]
        told = [list(filter(_reduces, calls)) if run.stage == 3 else list(calls) for calls in (inside, mine, theirs)]
        if told[0] and told[1] != told[2]:
            words = f"{headline} There rank {rank} issues {told[0][0]}"
            words += f", and {len(told[1])} collectives in all, {len(told[2])} without those micro-batches."
            raise Wasteful(words, run.scenario, run.outcome, choices=run.choices)


def _reduces(call: Collective) -> bool:
    return bool(call.reduction)


def _same_sequence(
    run: Run, headline: str, one: tuple[str, tuple[Collective, ...]], other: tuple[str, tuple[Collective, ...]]
) -> None:
    (first, theirs), (second, ours) = one, other
    for number, (left, right) in enumerate(zip(theirs, ours, strict=False), 1):
        if left != right:
            words = f"{headline} Collective {number} is {left} on {first} and {right} on {second}."
            raise Crashes(words, run.scenario, run.outcome, choices=run.choices)
    if len(theirs) != len(ours):
        words = f"{headline} There are {len(theirs)} collectives on {first} and {len(ours)} on {second}."
        raise Crashes(words, run.scenario, run.outcome, choices=run.choices)


def compare(
    run: Run,
    headline: str,
    quantity: str,
    place: int,
    rank: int,
    actual: Sequence[Any],
    expected: Sequence[Any],
) -> None:
    """Raises SilentlyWrong at the first parameter and element that is not what it must be."""
    for parameter, (seen, wanted) in enumerate(zip(actual, expected, strict=True)):
        element = _first_difference(seen, wanted)
        if element is not None:
            difference = Difference(quantity, place, rank, parameter, element, seen, wanted)
            words = f"{headline} {_words(difference)}"
            raise SilentlyWrong(words, run.scenario, run.outcome, difference, run.choices)


def same_bits(seen: Any, wanted: Any) -> bool:
    """Whether two arrays agree in dtype, shape and every bit, or there is none on either side."""
    if seen is None or wanted is None:
        return seen is wanted
    return seen.dtype == wanted.dtype and seen.shape == wanted.shape and seen.tobytes() == wanted.tobytes()


def holds(seen: Any, wanted: Any) -> bool:
    """Whether what was seen has the wanted bits, or lies in the wanted interval."""
    return _first_difference(seen, wanted) is None


def _first_difference(seen: Any, wanted: Any) -> tuple[int, ...] | None:
    """The first element that is not as wanted; of things that cannot be compared element by element, the first."""
    if isinstance(wanted, Inside):
        if seen is None or seen.shape != wanted.low.shape or seen.dtype != FORMATS[wanted.form].numpy:
            return (0,) * wanted.low.ndim
        wrong = ~wanted.contains(seen)
    elif same_bits(seen, wanted):
        return None
    elif seen is None or wanted is None or seen.dtype != wanted.dtype or seen.shape != wanted.shape:
        return (0,) * np.ndim(wanted if seen is None else seen)
    else:
        bits = np.dtype(f"u{seen.dtype.itemsize}")
        wrong = np.reshape(np.ravel(seen).view(bits) != np.ravel(wanted).view(bits), seen.shape)
    return tuple(int(index) for index in np.argwhere(wrong)[0]) if wrong.any() else None


def _words(difference: Difference) -> str:
    at = f"[{','.join(map(str, difference.element))}]" if difference.element else ""
    when = "after construction" if difference.place < 0 else f"after event {difference.place}"
    told = [shown(values, difference.element) for values in (difference.actual, difference.expected)]
    kinds = [_kind(values) for values in (difference.actual, difference.expected)]
    if None not in kinds and kinds[0] != kinds[1]:
        told = [f"{value} ({kind})" for value, kind in zip(told, kinds, strict=True)]
    return (
        f"On rank {difference.rank}, {when}, {quantity_name(difference)}{at} is {told[0]} where it must be {told[1]}."
    )


def _kind(values: Any) -> str | None:
    """Dtype and shape."""
    if values is None:
        return None
    return (
        f"{values.form} of shape {values.low.shape}"
        if isinstance(values, Inside)
        else (f"{values.dtype} of shape {values.shape}")
    )


def quantity_name(difference: Difference) -> str:
    """What the difference is in: a.grad, a, exp_avg of a, the norm of all gradients, ..."""
    match difference.quantity:
        case "parameter":
            return parameter_name(difference.parameter)
        case "gradient":
            return f"{parameter_name(difference.parameter)}.grad"
        case "norm":
            return "the norm of all gradients"
        case "loss scale":
            return "the loss scale"
        case "buffer":
            return f"buffer{difference.parameter}"
        case state:
            return f"{state} of {parameter_name(difference.parameter)}"


def shown(values: Any, element: tuple[int, ...]) -> str:
    """One element for people, or the interval that it must be in; None where there is none."""
    if values is None:
        return "None"
    if isinstance(values, Inside):
        if not values.low.size:
            return f"a {values.form} array of shape {values.low.shape}"
        return f"in [{values.low[element]:.17g}, {values.high[element]:.17g}]"
    if np.ndim(values) != len(element) or (np.size(values) == 0):
        return f"a {values.dtype} array of shape {np.shape(values)}"
    return f"{float(values[element]):.17g}" if values.dtype == np.float64 else str(values[element])
