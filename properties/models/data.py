"""The numbers of a run: initial values, which differ between ranks, and batches, all of them different."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lockstep.oracle.fingerprint import odd_part
from lockstep.properties.models.scenario import EXACT, SPARSE, ModelScenario

Arrays = dict[str, npt.NDArray[np.generic]]

ROWS = 3  # samples of a rank in a micro-batch; 1 to 4 in uneven batches
WIDTH, HIDDEN, OUT = 3, 4, 2  # of the perceptron and similar models
WORDS, LENGTH = 5, 3  # sizes of the vocabulary and of a sentence; 1 to 4 words in uneven batches
SIDE = 4  # the side of an image


def initial_values(scenario: ModelScenario, rank: int, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Initial values for parameters of these shapes: nonzero integers for exact models, else normal numbers."""
    random = np.random.default_rng([scenario.seed, 0, rank])
    drawn = _integers if scenario.model in EXACT else _normal
    return {name: drawn(random, shape).astype(scenario.dtype) for name, shape in shapes.items()}


def size(scenario: ModelScenario, rank: int, number: int) -> tuple[int, int]:
    """The number of samples in a rank's ``number``-th micro-batch, and the number of words in a sentence, if any."""
    if not scenario.uneven:
        return ROWS, LENGTH
    return 1 + (ROWS - 1 + rank + number) % (ROWS + 1), 1 + (LENGTH - 1 + rank + 2 * number) % (LENGTH + 1)


def batch(scenario: ModelScenario, rank: int, number: int) -> Arrays:
    """The ``number``-th micro-batch of a rank: ``inputs``, and ``targets`` or the loss's ``coefficients``."""
    random = np.random.default_rng([scenario.seed, 1 + number, rank])
    rows, length = size(scenario, rank, number)
    match scenario.model:
        case "tied" | "transformer":
            words = random.integers(0, WORDS, (2, rows, length))
            return {"inputs": words[0], "targets": words[1]}
        case "batch norm":
            return {
                "inputs": _normal(random, (rows, 1, SIDE, SIDE)).astype(scenario.dtype),
                "coefficients": _normal(random, (rows, OUT)).astype(scenario.dtype),
            }
        case "mlp" | "sparse embedding":
            multiple = odd_part(scenario.world_size)  # so that the mean over ranks is exact
            numbers = _integers(random, (rows, WIDTH)).astype(scenario.dtype)
            return {
                "inputs": random.integers(0, WORDS, rows) if scenario.model == SPARSE else numbers,
                "coefficients": (_integers(random, (rows, OUT)) * multiple).astype(scenario.dtype),
            }
        case _:
            return {
                "inputs": _normal(random, (rows, WIDTH)).astype(scenario.dtype),
                "coefficients": _normal(random, (rows, 2 * OUT)).astype(scenario.dtype),
            }


def _integers(random: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Integers from -3 to 3 without 0."""
    return random.integers(1, 4, shape) * random.choice([-1, 1], shape)


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    return random.standard_normal(shape)
