"""The observations of a rank with a real model."""

from typing import Any, TypedDict

from lockstep.properties.seen import Values


class ModelSeen(TypedDict, total=False):
    """The values are by parameter, by buffer, or by both with parameters first."""

    names: tuple[list[str], list[str]]  # of the parameters, and of the buffers
    given: Values  # by both: the values that the implementation is given
    initial: Values  # when ranks must be equal; by both, or by parameter if a forward may have changed buffers
    gradients: list[Values]  # by step
    parameters: list[Values]  # after each step
    buffers: list[Values]  # after each micro-batch
    inputs: list[Values]  # the gradient of the inputs of each micro-batch, if they need one
    outputs: list[Values]  # of each evaluation
    inner: list[list[tuple[str, Any]]]  # the outputs of modules, for each evaluation of a user's own model
