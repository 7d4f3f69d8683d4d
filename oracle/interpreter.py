"""Runs a program on paper: what every rank must hold at every point where the outside can look.

Everything is exact: the interpreter works on integers and checks, as it goes, that floating point would not round
either (`oracle.lattice`). A scenario for which that fails raises `Inexact` and proves nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle import lattice
from oracle.fingerprint import contributions, initial_parameters
from oracle.formats import FORMATS, Format
from oracle.lattice import Inexact, Lattice
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
    forms = [FORMATS[parameter.dtype] for parameter in scenario.parameters]
    ranks = range(scenario.world_size)
    weights = [lattice.from_integers(values.reshape(-1)) for values in initial_parameters(scenario, 0)]
    gradients: list[list[Lattice | None]] = [[None] * len(forms) for _ in ranks]
    batches = iter(range(len(scenario.microbatches)))
    data = contributions(scenario)
    expectation = Expectation(_values(scenario, weights), {}, {})

    for place, event in enumerate(scenario.program):
        if isinstance(event, Backward):
            batch = next(batches)
            for rank in ranks:
                for parameter in scenario.order(batch, rank):
                    new = _gradient(scenario, data[batch][parameter], weights[parameter], rank, forms[parameter])
                    old = gradients[rank][parameter]
                    gradients[rank][parameter] = (
                        new if old is None else lattice.add(np.stack([old, new]), forms[parameter])
                    )
        elif isinstance(event, Finish):
            for parameter, form in enumerate(forms):
                if scenario.parameters[parameter].trainable:
                    mean = _mean([gradients[rank][parameter] for rank in ranks], weights[parameter], averaging, form)
                    if mean is None and unused == "zero":
                        mean = np.zeros_like(weights[parameter])
                    for rank in ranks:
                        gradients[rank][parameter] = mean
            expectation.gradients[place] = _values(scenario, gradients[0])
        elif isinstance(event, ZeroGrad):
            for mine in gradients:
                mine[:] = [None if old is None or event.set_to_none else np.zeros_like(old) for old in mine]
        elif isinstance(event, Step):
            for parameter, form in enumerate(forms):
                gradient = gradients[0][parameter]
                if gradient is not None:
                    weights[parameter] = _sgd(weights[parameter], gradient, scenario.learning_rate, form)
            expectation.parameters[place] = _values(scenario, weights)
    return expectation


def is_exact(scenario: Scenario, averaging: str = AVERAGINGS[0]) -> bool:
    """Whether nothing rounds, in any order of reduction, when the mean is taken in the given way."""
    try:
        interpret(scenario, averaging)
    except Inexact:
        return False
    return True


def _gradient(scenario: Scenario, table: Lattice, weight: Lattice, rank: int, form: Format) -> Lattice:
    """d loss / d p of one rank and micro-batch: c for the linear probe, c * p for the quadratic one."""
    per_rank = scenario.samples // scenario.world_size
    total = table[rank * per_rank : (rank + 1) * per_rank].sum(axis=0)
    coefficient = lattice.divide(lattice.from_integers(total), per_rank, form)
    if scenario.probe == "linear":
        return coefficient
    return lattice.divide(lattice.multiply(total, weight, form), per_rank, form)


def _mean(local: list[Lattice | None], like: Lattice, averaging: str, form: Format) -> Lattice | None:
    """The mean over ranks; a rank that has no gradient contributes zero; None where no rank has one."""
    if all(gradient is None for gradient in local):
        return None
    terms = np.stack([np.zeros_like(like) if gradient is None else gradient for gradient in local])
    return lattice.mean(terms, averaging, form)


def _sgd(weight: Lattice, gradient: Lattice, learning_rate: float, form: Format) -> Lattice:
    """p - learning_rate * gradient, for a learning rate 2**-k."""
    shift = int(np.frexp(learning_rate)[1]) - 1
    if learning_rate != 2.0**shift or shift > 0:
        raise ValueError(f"a learning rate is a power of two of at most 1, not {learning_rate}")
    update = lattice.divide(gradient, 2**-shift, form)
    return lattice.add(np.stack([weight, -update]), form)


def _values(scenario: Scenario, values: list[Lattice] | list[Lattice | None]) -> Values:
    """Lattice values as arrays in each parameter's dtype and shape."""
    return tuple(
        None if value is None else lattice.to_float(value).astype(FORMATS[parameter.dtype].numpy).reshape(parameter.shape)
        for value, parameter in zip(values, scenario.parameters, strict=True)
    )
