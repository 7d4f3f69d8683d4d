"""The other model, if one is trained beside another on the same ranks."""

from collections.abc import Iterator
from dataclasses import replace

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import Backward, Finish, Freeze, ZeroGrad
from lockstep.oracle.program import Scenario


def partner(scenario: Scenario) -> Scenario:
    """The program of a model that shares its losses with another one.

    It is the same program with gradients of the opposite sign, so that no mean of one equals a mean of the other. It
    has another learning rate, and a caller with default habits.
    """
    rate = 0.25 if scenario.hyperparameters.learning_rate != 0.25 else 0.5
    return replace(
        scenario,
        signs="positive" if scenario.signs == "negative" else "negative",
        hyperparameters=replace(scenario.hyperparameters, learning_rate=rate),
        only=None,
        caller=Caller(),
    )


def companion(scenario: Scenario) -> Scenario:
    """The program of a model that takes turns with another one.

    It is the partner's program with an additional window at the beginning, so that one may be inside `no_sync` while
    the other is not.
    """
    orders = _orders(scenario) if scenario.microbatches else ()
    window = (Backward(orders), Finish(), ZeroGrad()) if any(orders) else ()
    return replace(partner(scenario), program=(*window, *scenario.program))


def _orders(scenario: Scenario) -> tuple[tuple[int, ...], ...]:
    """The orders of the first micro-batch.

    If parameters are frozen or trained again before it, the orders instead use all parameters trainable at the start.
    """
    kinds = [type(event) for event in scenario.program]
    if Freeze not in kinds[: kinds.index(Backward)]:
        return scenario.microbatches[0].orders
    trained = tuple(index for index, parameter in enumerate(scenario.parameters) if parameter.trainable)
    return (trained,) * scenario.samples


def turns(scenario: Scenario) -> Iterator[tuple[int, ...]]:
    """The events of each turn: one event, or a backward with its finish.

    Between these two, ranks may communicate at different moments.
    """
    turn: tuple[int, ...] = ()
    for place, after in enumerate(scenario.standings[1:]):
        turn = (*turn, place)
        if not after.unfinished:
            yield turn
            turn = ()
