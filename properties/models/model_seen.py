"""The observations of a rank with a real model, which it sends back."""

from typing import Any, TypedDict

from lockstep.properties.seen import Values


class ModelSeen(TypedDict, total=False):
    """Values go by parameter, by buffer, or by both, parameters first."""

    names: tuple[list[str], list[str]]  # of parameters, of buffers
    given: Values  # of both, those that the implementation is given
    initial: Values  # from when on ranks are equal; of both, or where a forward may have changed buffers, of parameters
    gradients: list[Values]  # by step
    parameters: list[Values]  # after each step
    buffers: list[Values]  # after each micro-batch
    inputs: list[Values]  # of each micro-batch, the gradient, if they take one
    outputs: list[Values]  # of each evaluation
    inner: list[list[tuple[str, Any]]]  # of each evaluation of a user's own model, what its modules give
