"""The observations of a rank, which it sends back."""

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Values = list[Array | None]  # by parameter, or buffer; None: there is no gradient, or it was not seen

OTHER_WEIGHTS = -1.0  # what every weight is that a caller swaps in


class Seen(TypedDict, total=False):
    """Of events by their place in the program; of none at which the rank had run out of micro-batches, or which the
    part that it ran does not look at (`properties.part.Part`). Collectives are counted from the first of the rank's.
    """

    initial: Values | None  # parameters, once ranks are claimed to be equal; None: not looked at
    gradients: dict[int, Values]  # after each Finish, Unscale and Clip, but for a Clip after an overflow
    # What hooks of the caller's have found, before each Finish, of the gradients since the last synchronizing Backward
    # began; None where none has run.
    kept: dict[int, Values]
    parameters: dict[int, Values]  # after each Step, Write, SaveAndLoad, Load and EndJoin
    evaluated: dict[int, Values]  # the parameters as each Evaluate and ActAlone has read them
    swapped: dict[int, Values]  # and as each SwapWeights has
    duplicates: dict[int, list[Values]]  # and as each Duplicate has, of every copy that there is, the oldest first
    norms: dict[int, Array | None]  # of each Clip
    states: dict[int, list[dict[str, Array]]]  # the optimizer's after each Step, see `oracle.interpreter.Expectation`
    loss_scales: dict[int, float]  # after each Step
    buffers: dict[int, Values]  # after each Backward
    copied: int  # how many gradients had copies put in their place
    # The next random number of each of `properties.naming.GENERATORS`, where they are seeded; -2: before wrapping.
    upcoming: dict[int, Values]
    metrics: dict[int, Array | None]  # what the caller has added up over the ranks, right after an event
    hooks: list[list[int]]  # of each micro-batch the parameters in the order in which their gradients became final
    built: list[tuple[int, int]]  # the collectives, from and up to, that served construction or made ranks equal
    looks: list[tuple[int, int]]  # those that only served to look at what is held in shards
    callers: list[tuple[int, int]]  # those of the caller's own, for its metrics
    local: list[tuple[int, int]]  # not counting these, those that were issued in a micro-batch inside `no_sync`
    stood: bool  # whether the wrapper, where it is asked, has told any parameters
    complaints: list[str]  # what a caller would complain of that no value shows
    saved: npt.NDArray[np.uint8]  # the file that the part has left

    launched: dict[int, list[tuple[int, int]]]  # see `properties.ranks.launched`
    traced: list[tuple[str, int, int, int]]  # see `properties.ranks.traced`
    bytes: dict[int, int]  # these two: see `properties.ranks.held_bytes`
    moments: dict[int, list[tuple[str, int, int, int]]]
