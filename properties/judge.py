"""Compares what was observed with what must be. Bits, always: None, zero and -0.0 are told apart."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oracle.interpreter import Expectation, Values
from properties.naming import parameter_name
from properties.trial import Run
from properties.verdict import Crashes, Difference, SilentlyWrong
from worlds.contract import Collective


def values_equal(run: Run, expected: Expectation, headline: str) -> None:
    """Every rank holds the expected gradients after each Finish and the expected parameters after each Step."""
    for place in (-1, *range(len(run.scenario.program))):
        for rank, seen in enumerate(run.observations):
            if place < 0:
                compare(run, headline, "parameter", place, rank, seen["initial"], expected.initial)
            if place in expected.gradients:
                compare(run, headline, "gradient", place, rank, seen["gradients"][place], expected.gradients[place])
            if place in expected.parameters:
                compare(run, headline, "parameter", place, rank, seen["parameters"][place], expected.parameters[place])


def replicas_equal(run: Run, headline: str) -> None:
    """Every rank holds, bit for bit, the parameters that rank 0 holds, after construction and after each Step."""
    first, *others = run.observations
    for rank, seen in enumerate(others, 1):
        compare(run, headline, "parameter", -1, rank, seen["initial"], first["initial"])
    for place in first["parameters"]:
        for rank, seen in enumerate(others, 1):
            compare(run, headline, "parameter", place, rank, seen["parameters"][place], first["parameters"][place])


def runs_equal(run: Run, reference: Run, headline: str) -> None:
    """Both runs gave the same gradients and parameters on each rank; a reference of one rank stands for every rank."""
    for rank, seen in enumerate(run.observations):
        other: Mapping[str, Any] = reference.observations[rank % len(reference.observations)]
        for quantity, key in (("gradient", "gradients"), ("parameter", "parameters")):
            for place in seen[key]:
                compare(run, headline, quantity, place, rank, seen[key][place], other[key][place])


def same_collectives(run: Run, headline: str) -> None:
    """Every rank issued the same collectives, in the same order."""
    for rank, mine in enumerate(run.collectives):
        _same_sequence(run, headline, ("rank 0", run.collectives[0]), (f"rank {rank}", mine))


def runs_communicate_alike(run: Run, reference: Run, headline: str) -> None:
    """Both runs issued the same collectives on each rank."""
    for rank, mine in enumerate(run.collectives):
        _same_sequence(run, headline, ("the reference", reference.collectives[rank]), (f"rank {rank}", mine))


def _same_sequence(
    run: Run, headline: str, one: tuple[str, tuple[Collective, ...]], other: tuple[str, tuple[Collective, ...]]
) -> None:
    (first, theirs), (second, ours) = one, other
    for number, (left, right) in enumerate(zip(theirs, ours, strict=False), 1):
        if left != right:
            words = f"{headline} Collective {number} is {left} on {first} and {right} on {second}."
            raise Crashes(words, run.scenario, run.outcome)
    if len(theirs) != len(ours):
        words = f"{headline} There are {len(theirs)} collectives on {first} and {len(ours)} on {second}."
        raise Crashes(words, run.scenario, run.outcome)


def compare(
    run: Run,
    headline: str,
    quantity: str,
    place: int,
    rank: int,
    actual: Sequence[Any],
    expected: Sequence[Any] | Values,
) -> None:
    """Raises SilentlyWrong at the first parameter and element whose bits differ."""
    for parameter, (seen, wanted) in enumerate(zip(actual, expected, strict=True)):
        element = _first_difference(seen, wanted)
        if element is not None:
            difference = Difference(quantity, place, rank, parameter, element, seen, wanted)
            raise SilentlyWrong(f"{headline} {_words(difference)}", run.scenario, run.outcome, difference)


def same_bits(seen: Any, wanted: Any) -> bool:
    """Whether two arrays agree in dtype, shape and every bit, or there is none on either side."""
    if seen is None or wanted is None:
        return seen is wanted
    return seen.dtype == wanted.dtype and seen.shape == wanted.shape and seen.tobytes() == wanted.tobytes()


def _first_difference(seen: Any, wanted: Any) -> tuple[int, ...] | None:
    if same_bits(seen, wanted):
        return None
    if seen is None or wanted is None or seen.dtype != wanted.dtype or seen.shape != wanted.shape:
        return (0,) * np.ndim(wanted if seen is None else seen)
    bits = np.dtype(f"u{seen.dtype.itemsize}")
    flat = np.flatnonzero(np.ravel(seen).view(bits) != np.ravel(wanted).view(bits))[0]
    return tuple(int(index) for index in np.unravel_index(flat, seen.shape))


def _words(difference: Difference) -> str:
    name = parameter_name(difference.parameter) + (".grad" if difference.quantity == "gradient" else "")
    at = f"[{','.join(map(str, difference.element))}]" if difference.element else ""
    when = "after construction" if difference.place < 0 else f"after event {difference.place}"
    return (
        f"On rank {difference.rank}, {when}, {name}{at} is {shown(difference.actual, difference.element)} "
        f"where it must be {shown(difference.expected, difference.element)}."
    )


def shown(values: Any, element: tuple[int, ...]) -> str:
    """One element for people; None where there is no gradient."""
    if values is None:
        return "None"
    if np.ndim(values) != len(element) or (np.size(values) == 0):
        return f"an array of shape {np.shape(values)}"
    return f"{float(values[element]):.17g}" if values.dtype == np.float64 else str(values[element])
