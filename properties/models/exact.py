"""The models in integers times a power of two, on the whole batch in one place, with the proof that nothing rounds.

With W1, b1, W2, b2 the weights, x a sample and c its coefficients, the loss is the sum over samples of <c, y>, where

    z = W1 x + b1     h = max(z, 0)     y = W2 h + b2     dh = W2' c     dz = dh where z > 0, else 0

so the gradients of W1, b1, W2, b2 are the sums of dz x', dz, c h', c. All are sums of products of integers with values
on the lattice. `oracle.lattice` raises Inexact if a sum could round in some order. (The gradient of max at 0 is 0.) An
embedding table is the transpose of W1, without b1, and x has a single 1 at the index of its word.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lockstep.oracle import lattice
from lockstep.oracle.lattice import Formats, Lattice
from lockstep.properties.models import data
from lockstep.properties.models.scenario import SPARSE, ModelScenario

RATE = 0.25  # the same as in `modules.optimizer`
_SECOND = {"second.weight": (data.OUT, data.HIDDEN), "second.bias": (data.OUT,)}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {"first.weight": (data.HIDDEN, data.WIDTH), "first.bias": (data.HIDDEN,), **_SECOND},
    SPARSE: {"table.weight": (data.WORDS, data.HIDDEN), **_SECOND},
}
Weights = list[Lattice]
Gradients = list[Lattice | None]  # None for frozen parameters


@lru_cache(maxsize=64)
def train(scenario: ModelScenario, averaging: str) -> tuple[list[Gradients], list[Weights]]:
    """The gradients of each step and the weights after it.

    A gradient is the mean over ranks of all micro-batches since the last step. Raises Inexact if anything might round,
    and for any optimizer but plain SGD.
    """
    if scenario.optimizer != "SGD":
        raise lattice.Inexact(f"{scenario.optimizer} is not followed in integers")
    form = lattice.formats((scenario.dtype,), (1,))
    shapes = SHAPES[scenario.model]
    values = data.initial_values(scenario, 0, shapes)
    weights = [lattice.from_integers(values[name]) for name in shapes]
    gradients: list[Gradients] = []
    after, batch = [], 0
    for step, local in enumerate(scenario.local):
        batches = range(batch, batch + local + 1)
        batch = batches.stop
        of_ranks = [_sums(scenario, rank, batches, weights, form) for rank in range(scenario.world_size)]
        means = [_mean([mine[index] for mine in of_ranks], averaging, form) for index in range(len(weights))]
        trained = [scenario.trains(name, step) for name in shapes]
        moves = [-lattice.scale(mean, RATE, form) for mean in means]
        weights = [
            lattice.add(np.stack((weight, move)), form) if moved else weight
            for weight, move, moved in zip(weights, moves, trained, strict=True)
        ]
        gradients.append([mean if moved else None for mean, moved in zip(means, trained, strict=True)])
        after.append(weights)
    return gradients, after


def _mean(terms: Sequence[Lattice], averaging: str, form: Formats) -> Lattice:
    flat = np.stack([term.reshape(-1) for term in terms])
    each = lattice.formats((form.forms[0].name,), (flat.shape[1],))
    return lattice.mean(flat, averaging, each).reshape(terms[0].shape)


def _sums(scenario: ModelScenario, rank: int, batches: range, weights: Weights, form: Formats) -> Weights:
    """The gradients of a rank over some micro-batches, as sums over all samples."""
    rows = [data.batch(scenario, rank, number) for number in batches]
    x = np.concatenate([row["inputs"] for row in rows]).astype(np.int64)
    c = np.concatenate([row["coefficients"] for row in rows]).astype(np.int64)
    first, *biases, second, _ = weights
    if looks_up := scenario.model == SPARSE:
        x, first = np.eye(data.WORDS, dtype=np.int64)[x], first.T
    z = _add([_times(x[:, None, j], first[None, :, j], form) for j in range(x.shape[1])], form, *biases)
    h = np.where(z > 0, z, 0)
    dh = _add([_times(c[:, None, i], second[None, i, :], form) for i in range(c.shape[1])], form)
    dz = np.where(z > 0, dh, 0)
    of_first = lattice.add(_times(x[:, None, :], dz[:, :, None], form), form)
    return [
        *([of_first.T] if looks_up else [of_first, lattice.add(dz, form)]),
        lattice.add(_times(c[:, :, None], h[:, None, :], form), form),
        lattice.add(lattice.from_integers(c), form),
    ]


def _times(integers: npt.NDArray[np.int64], values: Lattice, form: Formats) -> Lattice:
    return lattice.multiply(integers, values, form)


def _add(terms: list[Lattice], form: Formats, bias: Lattice | None = None) -> Lattice:
    extra = [] if bias is None else [np.broadcast_to(bias, terms[0].shape)]
    return lattice.add(np.stack([*terms, *extra]), form)
