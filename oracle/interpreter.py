"""Runs a program on paper: what every rank must hold at every point where the outside can look.

Everything is exact: the interpreter works on integers and checks, as it goes, that floating point would not round
either (`oracle.lattice`). A scenario for which that fails raises `Inexact` and proves nothing. All parameters lie end
to end in one array; ``has`` says which of them have a gradient, since none is not zero.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle import lattice
from oracle.fingerprint import contributions, initial_parameters
from oracle.formats import FORMATS
from oracle.lattice import Formats, Inexact, Lattice
from oracle.program import AVERAGINGS, UNUSED, Backward, Finish, Scenario, Step, ZeroGrad

Values = tuple[npt.NDArray[np.generic] | None, ...]


@dataclass(frozen=True)
class Expectation:
    """What holds on *every* rank, one array per parameter, in its dtype and shape.

    ``gradients`` after each Finish and ``parameters`` after each Step, by the event's place in the program;
    ``initial`` after construction. None: there is no gradient.
    """

    initial: Values
    gradients: dict[int, Values]
    parameters: dict[int, Values]


def interpret(scenario: Scenario, averaging: str = AVERAGINGS[0], unused: str = UNUSED[0]) -> Expectation:
    """The expectation of a scenario, for an implementation that averages in the given way.

    Raises Inexact where an operation would round.
    """
    if averaging not in AVERAGINGS:
        raise ValueError(f"an averaging is one of {', '.join(AVERAGINGS)}, not {averaging!r}")
    if unused not in UNUSED:
        raise ValueError(f"what an unused parameter gets is one of {', '.join(UNUSED)}, not {unused!r}")
    sizes = tuple(parameter.count for parameter in scenario.parameters)
    form = lattice.formats(tuple(parameter.dtype for parameter in scenario.parameters), sizes)
    trained = np.array([parameter.trainable for parameter in scenario.parameters])
    weights = lattice.from_integers(np.concatenate([v.reshape(-1) for v in initial_parameters(scenario, 0)]))
    gradients: Lattice = np.zeros((scenario.world_size, sum(sizes)), dtype=np.int64)
    has = np.zeros((scenario.world_size, len(sizes)), dtype=bool)
    batch = 0
    expectation = Expectation(_values(scenario, weights), {}, {})

    for place, event in enumerate(scenario.program):
        if isinstance(event, Backward):
            gradients = lattice.add([gradients, _local_gradients(scenario, batch, weights, form)], form)
            for rank in range(scenario.world_size):
                has[rank, list(scenario.order(batch, rank))] = True
            batch += 1
        elif isinstance(event, Finish):
            gradients[:] = lattice.mean(gradients, averaging, form)
            has[:] = has.any(axis=0) | (trained & (unused == "zero"))
            expectation.gradients[place] = _values(scenario, gradients[0], has[0])
        elif isinstance(event, ZeroGrad):
            gradients[:] = 0
            has &= not event.set_to_none
        elif isinstance(event, Step):
            weights = lattice.add([weights, -_update(gradients[0], scenario.learning_rate, form)], form)
            expectation.parameters[place] = _values(scenario, weights)
    return expectation


def is_exact(scenario: Scenario, averaging: str = AVERAGINGS[0]) -> bool:
    """Whether nothing rounds, in any order of reduction, when the mean is taken in the given way."""
    try:
        interpret(scenario, averaging)
    except Inexact:
        return False
    return True


def _local_gradients(scenario: Scenario, batch: int, weights: Lattice, form: Formats) -> Lattice:
    """d loss / d p on every rank: c for the linear probe, c * p for the quadratic one, c the mean of a rank's samples.

    Zero for a parameter that takes no part. Shape (ranks, elements).
    """
    per_rank = scenario.samples // scenario.world_size
    table = np.concatenate(contributions(scenario)[batch], axis=1)
    totals = table.reshape(scenario.world_size, per_rank, -1).sum(axis=1)
    coefficients = lattice.divide(lattice.from_integers(totals), per_rank, form)
    if scenario.probe == "linear":
        return lattice.representable(coefficients, form)
    return lattice.divide(lattice.multiply(totals, weights, form), per_rank, form)


def _update(gradient: Lattice, learning_rate: float, form: Formats) -> Lattice:
    """learning_rate * gradient, for a learning rate 2**-k; zero where there is no gradient."""
    return lattice.divide(gradient, int(1 / learning_rate), form)


def _values(scenario: Scenario, flat: Lattice, has: npt.NDArray[np.bool_] | None = None) -> Values:
    """Lattice values as one array for each parameter, in its dtype and shape; None where it has no gradient."""
    values, start = [], 0
    numbers = lattice.to_float(flat)
    for index, parameter in enumerate(scenario.parameters):
        mine = numbers[start : start + parameter.count]
        start += parameter.count
        array = mine.astype(FORMATS[parameter.dtype].numpy).reshape(parameter.shape)
        values.append(array if has is None or has[index] else None)
    return tuple(values)
