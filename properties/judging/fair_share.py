"""The bytes that all ranks together should hold between events, by ZeRO stage (`oracle.zero`), for each parameter."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstep.oracle.events import Finish, Step, ZeroGrad
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.program import Scenario
from lockstep.oracle.recipes import Recipe
from lockstep.oracle.shards import flat, numel
from lockstep.oracle.zero import Memory, Plan, held

MOST_BYTES_OF_A_COUNT = 8  # of the step counts


def fair_shares(scenario: Scenario, expected: Expectation, stage: int) -> dict[int, tuple[int, int]]:
    """The least and most bytes of all ranks together, after construction (-1) and after each Finish, Step and ZeroGrad.

    A ZeroGrad that sets gradients accumulated inside `no_sync` to zero is left out, because these are full gradients.

    The least: nothing is stored twice, there is no padding and no master weight of a frozen parameter, and at stage 1
    gradients are freed like at stage 2. The most: each tensor is split on its own and padded to equal shares. Full
    tensors are padded too, because shares may be views of them. Below stage 2, the memory of full gradients may remain
    after they are dropped. There may be step counts.
    """
    tensors = scenario.tensors
    gradients: dict[int, bool] = dict.fromkeys(tensors, False)
    states: dict[int, Mapping[str, Any]] = {index: {} for index in tensors}
    buffers = 4 * sum(numel(buffer.shape) for buffer in scenario.buffers) * scenario.world_size
    shares: dict[int, tuple[int, int]] = {}
    for place in (-1, *range(len(scenario.program))):
        match None if place < 0 else scenario.program[place]:
            case None:
                pass
            case Finish():
                gradients = {index: expected.gradients[place][index] is not None for index in tensors}
            case Step():
                states = {index: expected.states[place][index] for index in tensors}
            case ZeroGrad() as event if event.set_to_none or not scenario.standings[place].local:
                gradients = {index: there and not event.set_to_none for index, there in gradients.items()}
            case _:
                continue
        each = [share(scenario, index, gradients[index], states[index], stage) for index in tensors]
        least, most = (sum(column) + buffers for column in zip(*each, strict=True))
        shares[place] = (least, most)
    return shares


def recipe_of(scenario: Scenario, index: int, state: Mapping[str, Any]) -> Recipe:
    """The bytes per element of a parameter, with its optimizer state."""
    size = FORMATS[scenario.parameters[index].dtype].bytes
    master = 4 if scenario.masters and size == 2 else 0
    arrays = len(state.keys() - {"step", "master"})
    return Recipe(size, size, 0, master, arrays * (master or size))


def share(scenario: Scenario, index: int, gradient: bool, state: Mapping[str, Any], stage: int) -> tuple[int, int]:
    """The least and most bytes of all ranks for one parameter, its gradient and its state."""
    parameter, recipe = scenario.parameters[index], recipe_of(scenario, index, state)
    padded = flat({"p": parameter.shape}, scenario.world_size // scenario.replicas)
    plain = replace(padded, padded=padded.counts, state=padded.counts)
    totals = []
    most = (padded, stage, gradient or (stage < 2 and parameter.trainable))
    for layout, at, there in ((plain, max(stage, 2), gradient), most):
        copied = recipe if layout is padded or parameter.trainable else replace(recipe, master=0)
        plan = Plan((layout,), at, copied, scenario.replicas)
        moment = Memory(whole_gradients={0} if there and at < 2 else set())
        moment.own_gradients |= {0} if there and at >= 2 else set()
        totals.append(sum(held(plan, moment, rank).total for rank in range(scenario.world_size)))
    padding = (sum(padded.padded) - parameter.count) * recipe.parameter
    whole = (stage < 3) + (stage < 2 and most[2])
    counts = MOST_BYTES_OF_A_COUNT if "step" in state else 0
    return totals[0], totals[1] + (whole * padding + counts) * scenario.world_size
