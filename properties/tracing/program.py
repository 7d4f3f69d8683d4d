"""The program that `lockstep run` shows: a few steps of a small model, or a scenario given as text."""

import math
from collections.abc import Sequence
from dataclasses import replace

from lockstep.oracle.events import Backward, Event, Finish, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import NAMES, Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.strategies.within import beyond

WIDTH, LAYERS = 16, 4  # of the default model; each layer has a weight and a bias
STEPS = 2  # the last is shown, because some implementations, like torch's DDP, rebuild buckets after the first
# SmolLM2-360M with each side of a tensor divided by 64.
SIDE = 64
HIDDEN, INNER, KEYS, VOCABULARY, BLOCKS = 960 // SIDE, 2560 // SIDE, 320 // SIDE, 49152 // SIDE, 32


def usual_model() -> tuple[tuple[int, ...], ...]:
    """The shapes of the default model."""
    return ((WIDTH, WIDTH), (WIDTH,)) * LAYERS


def usual_cap() -> int:
    """The bytes of a bucket that holds half of the default model."""
    return sum(4 * math.prod(shape) for shape in usual_model()) // 2


def language_model() -> tuple[tuple[int, ...], ...]:
    """The shapes of the 290 tensors of a published comparison; matrices have a 4,096th of their elements."""
    attention = ((HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN))
    block = (*attention, (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER), (HIDDEN,), (HIDDEN,))
    return ((VOCABULARY, HIDDEN), *block * BLOCKS, (HIDDEN,))


def training(
    claims: Claims,
    shapes: Sequence[tuple[int, ...]],
    ranks: int,
    micro_batches: int = 1,
    steps: int = STEPS,
    bucket_cap: int | None = None,
) -> Scenario:
    """A scenario with so many equal steps.

    If `no_sync` is claimed, all micro-batches of a step but the last are inside it; otherwise each one synchronizes.
    """
    parameters = tuple(Parameter(shape) for shape in shapes)
    orders = (tuple(reversed(range(len(parameters)))),) * ranks
    early: tuple[Event, ...] = (Backward(orders, synchronize=False),)
    if not claims.accumulation:
        early = (Backward(orders), Finish())
    step = (*early * (micro_batches - 1), Backward(orders), Finish(), Step(), ZeroGrad())
    cap = bucket_cap if claims.bucket_cap else None
    made = Scenario(ranks, parameters, step * steps, bucket_cap=cap)
    units = tuple((first, first + 1) for first in range(0, len(parameters) - 1, 2))
    in_units = replace(made, units=units)
    return made if beyond(claims, in_units) else in_units


def read(text: str) -> Scenario:
    """The scenario with this repr. Raises ValueError with a message of one line for any other text."""
    try:
        made = eval(text, {"__builtins__": {}, **NAMES})
    except Exception as error:
        raise ValueError(
            f"this is no scenario: {type(error).__name__}: {error}; copy the one that a report ends with"
        ) from None
    if not isinstance(made, Scenario):
        raise ValueError(f"this is no scenario but a {type(made).__name__}: copy the one that a report ends with")
    return made


def last_step(scenario: Scenario) -> range:
    """The places of the events of the last step: after the second-to-last Step, or from the beginning."""
    steps = scenario.places(Step)
    return range(steps[-2] + 1 if len(steps) > 1 else 0, len(scenario.program))
