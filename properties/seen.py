"""The observations of a rank."""

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Values = list[Array | None]  # by parameter or buffer; None: there is no gradient, or it was not observed

OTHER_WEIGHTS = -1.0  # the value of every weight that a caller swaps in


class Seen(TypedDict, total=False):
    """Observations by the place of the event in the program.

    Events after the rank has run out of micro-batches are missing, and events that its part does not observe
    (`properties.part.Part`). Collectives are counted from the rank's first one.
    """

    initial: Values | None  # parameters at the moment when ranks must be equal; None: not observed
    gradients: dict[int, Values]  # after each Finish, Unscale and Clip, except a Clip after an overflow
    # The gradients that the caller's hooks saw since the last synchronizing Backward began, at each Finish; None if no
    # hook has run.
    kept: dict[int, Values]
    parameters: dict[int, Values]  # after each Step, Write, SaveAndLoad, Load and EndJoin
    evaluated: dict[int, Values]  # the parameters that each Evaluate and ActAlone has read
    swapped: dict[int, Values]  # the parameters that each SwapWeights has read
    # The parameters that each copy of the model has read at each Duplicate, the oldest copy first.
    duplicates: dict[int, list[Values]]
    norms: dict[int, Array | None]  # returned by each Clip
    # The optimizer state after each Step, see `oracle.interpreter.Expectation`.
    states: dict[int, list[dict[str, Array]]]
    loss_scales: dict[int, float]  # after each Step
    buffers: dict[int, Values]  # after each Backward
    copied: int  # the number of gradients that were replaced by copies
    # The next random number of each of `properties.naming.GENERATORS`, if they are seeded; -2: before wrapping.
    upcoming: dict[int, Values]
    metrics: dict[int, Array | None]  # the caller's sum over the ranks right after an event
    hooks: list[list[int]]  # for each micro-batch, the parameters in the order in which their gradients became final
    built: list[tuple[int, int]]  # ranges of collectives for construction and for making ranks equal
    looks: list[tuple[int, int]]  # ranges of collectives that only served observation
    callers: list[tuple[int, int]]  # ranges of the caller's own collectives, for its metrics
    # Ranges of collectives in micro-batches inside `no_sync`, not counting those for observation.
    local: list[tuple[int, int]]
    stood: bool  # true if the wrapper was asked for its parameters and has some
    complaints: list[str]  # faults that a caller would see and that no value shows
    saved: npt.NDArray[np.uint8]  # the file that the part has written

    launched: dict[int, list[tuple[int, int]]]  # see `properties.ranks.launched`
    traced: list[tuple[str, int, int, int]]  # see `properties.ranks.traced`
    bytes: dict[int, int]  # for this and the next one see `properties.ranks.held_bytes`
    moments: dict[int, list[tuple[str, int, int, int]]]
