"""Compare observed values with expected ones: equal bits, or membership in a proved interval if the oracle gives one.

None, zero and -0.0 are different values.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.oracle.events import Backward, Duplicate
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.state import Inside
from lockstep.properties.difference import Difference, in_words
from lockstep.properties.seen import OTHER_WEIGHTS, Seen
from lockstep.properties.trial import Run
from lockstep.properties.verdict import SilentlyWrong

# The quantities of `pairs`. Any other quantity is a piece of optimizer state, named as in torch.
QUANTITIES = ("parameter", "gradient", "norm", "loss scale", "buffer", "metric")
# Headlines for differences in other quantities than the one that the law's headline is about.
OTHERS = {
    "parameter": "Parameters are not what they must be.",
    "norm": "The norm of gradients is not what it must be.",
    "loss scale": "The loss scale is not what it must be.",
    "buffer": "Buffers are not what they must be.",
    "metric": "What the caller adds up over the ranks is not what it must be.",
    "state": "Optimizer state is not what it must be.",
    "random number": "Random numbers do not go on where the caller left them.",
    "kept": "A hook of the caller's finds a gradient that is not final.",
}


def values_equal(run: Run, expected: Expectation, headline: str, of: Collection[str] = (), about: str = "") -> None:
    """Check that every rank holds the expected values at the start and after each event.

    ``of``: check these alone, each one of ``QUANTITIES`` or "state". If empty, check all, including the observations of
    the caller's hooks and random numbers, but not norms that were not returned, for which there is another law.
    ``about``: the quantity that the headline is about; empty: all.
    """
    if run.right.get(frozenset(of)) is expected:
        return
    for place in (-1, *range(len(run.scenario.program))):
        for rank, seen in enumerate(run.observations):
            told = () if rank in run.scenario.gone(place) else pairs(seen, expected, place, rank)
            for quantity, actual, wanted in told:
                kind = quantity if quantity in QUANTITIES else "state"
                untold = kind == "norm" and actual[0] is None
                if kind in of or not (of or untold):
                    said = headline if about in ("", kind) else OTHERS[kind]
                    compare(run, said, quantity, place, rank, actual, wanted)
    if run.scenario.caller.seeded and not of:
        random_numbers_go_on(run, OTHERS["random number"] if about else headline)
    if run.scenario.caller.keeps_gradients and not of:
        kept_equal(run, OTHERS["kept"] if about else headline)
    run.right[frozenset(of)] = expected


def pairs(
    seen: Seen, expected: Expectation, place: int, rank: int
) -> Iterator[tuple[str, Sequence[Any], Sequence[Any]]]:
    """The seen and the expected values of a rank after an event: a quantity, and its values by parameter or buffer."""
    if place < 0 and seen["initial"] is not None:
        yield "parameter", seen["initial"], expected.initial
    if place in expected.gradients:
        yield "gradient", seen["gradients"][place], expected.gradients[place]
    if place in expected.norms:
        yield "norm", [seen["norms"][place]], [_as_wide(seen["norms"][place], expected.norms[place])]
    if place in expected.parameters:
        yield "parameter", seen["parameters"][place], expected.parameters[place]
    if place in expected.states and place in seen["states"]:
        ours, theirs = seen["states"][place], expected.states[place]
        for name in dict.fromkeys(name for states in (ours, theirs) for state in states for name in state):
            seen_of, wanted = [state.get(name) for state in ours], [state.get(name) for state in theirs]
            if name == "step":  # a count, whose dtype does not matter
                seen_of = [None if each is None else each.astype(np.float32) for each in seen_of]
            if name == "master":
                spared = [index for index in expected.spared[place] if seen_of[index] is None]
                wanted = [None if index in spared else each for index, each in enumerate(wanted)]
            yield name, seen_of, wanted
    if place in expected.loss_scales:
        yield "loss scale", [np.asarray(seen["loss_scales"][place])], [np.asarray(expected.loss_scales[place])]
    if place in expected.buffers:
        yield "buffer", seen["buffers"][place], expected.buffers[place][rank]
    if place in expected.metrics:
        yield "metric", [seen["metrics"][place]], [expected.metrics[place]]


def _as_wide(seen: Any, wanted: Any) -> Any:
    """The expected norm, converted to the dtype of the seen one if that is wider, which is allowed."""
    if seen is None:
        return wanted
    own, told = wanted.form if isinstance(wanted, Inside) else wanted.dtype.name, seen.dtype.name
    if told not in FORMATS or FORMATS[told].precision <= FORMATS[own].precision:
        return wanted
    return Inside(wanted.low, wanted.high, told) if isinstance(wanted, Inside) else wanted.astype(seen.dtype)


def random_numbers_go_on(run: Run, headline: str) -> None:
    """Check that construction and events leave every rank's next random number unchanged."""
    for rank, seen in enumerate(run.observations):
        for place in (place for place in seen["upcoming"] if place > -2):
            compare(run, headline, "random number", place, rank, seen["upcoming"][place], seen["upcoming"][-2])


def replicas_equal(run: Run, headline: str) -> None:
    """Check that every rank holds rank 0's parameters bit for bit, at the start and after each Step.

    After each Step this includes rank 0's optimizer state.
    """
    first, *others = run.observations
    starts_equal(run, first["initial"], headline)
    for place in first["parameters"]:
        for rank, seen in enumerate(others, 1):
            compare(run, headline, "parameter", place, rank, seen["parameters"][place], first["parameters"][place])
    states_equal(run, headline)


def nothing_in_flight_is_touched(run: Run, headline: str) -> None:
    """Check that no rank used, changed or freed memory that a collective in flight reads or writes.

    See `worlds.contract.Hazard`.
    """
    hazards = next((report.hazards for report in run.outcome if report.hazards), ())
    if hazards:
        words = f"{headline} {'; '.join(map(str, hazards[:2]))}.".replace(f"{Path.cwd()}/", "")
        raise run.broken(SilentlyWrong, words)


def states_equal(run: Run, headline: str) -> None:
    """Check that every rank holds rank 0's optimizer state bit for bit after each Step."""
    first, *others = run.observations
    for place, mine in first["states"].items():
        for rank, seen in enumerate(others, 1):
            theirs = seen["states"][place]
            for name in dict.fromkeys(name for state in (*mine, *theirs) for name in state):
                actual, wanted = ([state.get(name) for state in states] for states in (theirs, mine))
                compare(run, headline, name, place, rank, actual, wanted)


def evaluations_equal(run: Run, headline: str) -> None:
    """Check that every rank's evaluations read the parameters that it held after the last change, bit for bit.

    If an evaluation computes in another dtype, the parameters are converted to it. Parameters whose read was not
    recorded are skipped.
    """
    for rank, seen in enumerate(run.observations):
        held = {-1: seen["initial"], **seen["parameters"]}
        for place, values in seen["evaluated"].items():
            last = held[max(each for each in held if each < place)]
            compare(run, headline, "read", place, rank, values, as_read(values, last))


def as_read(values: Sequence[Any], held: Sequence[Any]) -> list[Any]:
    """The values that an evaluation must have read of the held parameters, in the dtype in which it computes.

    None for parameters whose read was not recorded.
    """
    return [None if read is None else each.astype(read.dtype) for read, each in zip(values, held, strict=True)]


def swapped_are_read(run: Run, headline: str) -> None:
    """Check that every rank's evaluations with other weights read these weights, as far as recorded."""
    for rank, seen in enumerate(run.observations):
        for place, values in seen["swapped"].items():
            wanted = [None if read is None else np.full_like(read, OTHER_WEIGHTS) for read in values]
            compare(run, headline, "read", place, rank, values, wanted)


def kept_equal(run: Run, headline: str) -> None:
    """Check that gradients kept by the caller's hooks are the final ones.

    Hooks must have run for each parameter that the last micro-batch used, and may have run for others.
    """
    scenario = run.scenario
    for rank, seen in enumerate(run.observations):
        for place, values in ((at, values) for at, values in seen["kept"].items() if at in seen["gradients"]):
            last = max(at for at, batch in scenario.events(Backward) if batch.synchronize and at < place)
            used = {scenario.tensor(index) for index in scenario.order(scenario.batch(last), scenario.role(rank))}
            wanted = [
                final if kept is not None or scenario.tensor(index) in used else None
                for index, (kept, final) in enumerate(zip(values, seen["gradients"][place], strict=True))
            ]
            compare(run, headline, "kept", place, rank, values, wanted)


def duplicates_equal(run: Run, headline: str) -> None:
    """Check that every rank's deep copies of the model read the values that they were made with, bit for bit."""
    for rank, seen in enumerate(run.observations):
        held = {-1: seen["initial"], **seen["parameters"]}
        for place, copies in seen["duplicates"].items():
            for made, values in zip(run.scenario.places(Duplicate), copies, strict=False):
                last = held[max(each for each in held if each < made)]
                compare(run, headline, "read", place, rank, values, as_read(values, last))


def starts_equal(run: Run, initial: Sequence[Any], headline: str) -> None:
    """Check that every rank starts with these parameters, after construction or the first forward, as claimed."""
    for rank, seen in enumerate(run.observations):
        compare(run, headline, "parameter", -1, rank, seen["initial"], initial)


def runs_equal(run: Run, reference: Run, headline: str, factor: float = 1.0) -> None:
    """Check that every rank has the gradients, times ``factor``, and the parameters of the reference's rank 0."""
    gradients_equal(run, reference, {place: place for place in run.observations[0]["gradients"]}, factor, headline)
    for rank, seen in enumerate(run.observations):
        for place, values in seen["parameters"].items():
            wanted = reference.observations[0]["parameters"][place]
            compare(run, headline, "parameter", place, rank, values, wanted)


def runs_agree(run: Run, other: Run, expected: Expectation, headline: str) -> None:
    """Check that both runs have the same gradients and parameters.

    If they differ, the run that is not as expected is reported, compared with the other run. ``expected`` has no other
    use.
    """
    try:
        values_equal(run, expected, headline, of=("gradient", "parameter"))
    except SilentlyWrong:
        runs_equal(run, other, headline)
    else:
        runs_equal(other, run, headline)


def gradients_equal(run: Run, reference: Run, places: Mapping[int, int], factor: float, headline: str) -> None:
    """Compare every rank's gradients at each place with those of the reference's rank 0 at another place.

    The latter are multiplied by ``factor``, a power of two or its negative. With a negative factor, -0.0 is replaced by
    zero.
    """
    for rank, seen in enumerate(run.observations):
        for place, other in places.items():
            wanted = reference.observations[0]["gradients"][other]
            wanted = [None if each is None else each * each.dtype.type(factor) for each in wanted]
            if factor < 0:
                wanted = [None if each is None else np.where(each == 0, np.zeros_like(each), each) for each in wanted]
            compare(run, headline, "gradient", place, rank, seen["gradients"][place], wanted)


def compare(
    run: Run,
    headline: str,
    quantity: str,
    place: int,
    rank: int,
    actual: Sequence[Any],
    expected: Sequence[Any],
) -> None:
    """Raise SilentlyWrong at the first parameter and element that differs."""
    for parameter, (seen, wanted) in enumerate(zip(actual, expected, strict=True)):
        element = _first_difference(seen, wanted)
        if element is not None:
            difference = Difference(quantity, place, rank, parameter, element, seen, wanted)
            words = f"{headline} {in_words(difference, run.start)}"
            raise run.broken(SilentlyWrong, words, difference)


def same_bits(seen: Any, wanted: Any) -> bool:
    """True if two arrays agree in dtype, shape and every bit, or if both are None."""
    if seen is None or wanted is None:
        return seen is wanted
    return seen.dtype == wanted.dtype and seen.shape == wanted.shape and seen.tobytes() == wanted.tobytes()


def holds(seen: Any, wanted: Any) -> bool:
    """True if the value has the wanted bits, or lies in the wanted interval."""
    return _first_difference(seen, wanted) is None


def _first_difference(seen: Any, wanted: Any) -> tuple[int, ...] | None:
    """The index of the first element that differs. If shapes or dtypes differ, the first element."""
    if isinstance(wanted, Inside):
        if seen is None:
            return _first_nonzero(wanted.low)
        if seen.shape != wanted.low.shape or seen.dtype != FORMATS[wanted.form].numpy:
            return (0,) * wanted.low.ndim
        wrong = ~wanted.contains(seen)
    elif same_bits(seen, wanted):
        return None
    elif seen is None or wanted is None:
        return _first_nonzero(wanted if seen is None else seen)
    elif seen.dtype != wanted.dtype or seen.shape != wanted.shape:
        return (0,) * np.ndim(seen)
    else:
        bits = np.dtype(f"u{seen.dtype.itemsize}")
        wrong = np.reshape(np.ravel(seen).view(bits) != np.ravel(wanted).view(bits), seen.shape)
    return tuple(int(index) for index in np.argwhere(wrong)[0]) if wrong.any() else None


def _first_nonzero(values: Any) -> tuple[int, ...]:
    """The index that best shows a missing or superfluous array: the first nonzero element, or the first one."""
    nonzero = np.argwhere(np.asarray(values) != 0)
    return tuple(int(index) for index in nonzero[0]) if len(nonzero) else (0,) * np.ndim(values)
