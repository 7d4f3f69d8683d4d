"""ZeRO and HSDP on numbers: the training steps of `oracle.zero` with each rank's own arrays, and the same unsharded.

Optimizers work element by element, so that updating a slice and gathering equals updating the whole, bit for bit, when
gradients are summed in the same order. Arithmetic is float64; a plan's precision recipe plays no part here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.oracle.collectives import all_gather, all_reduce, on_group, reduce_scatter
from lockstep.oracle.optimizers import SGD, Adam, AdamState, SGDState, adam_step, sgd_step
from lockstep.oracle.shards import Array, Layout, flat, from_shards, join, to_shards
from lockstep.oracle.zero import Plan, replica_groups, shard_groups

Tensors = Mapping[str, Array]
Optimizer = SGD | Adam
OptimizerState = SGDState[Array] | AdamState[Array]
Gradient = Callable[[int, int, int, Tensors], Tensors]
"""(step, micro_batch, rank, whole parameters as that rank sees them) -> its gradient of every parameter."""


@dataclass
class Rank:
    """Between steps: ``parameters`` whole below stage 3 and empty at it; ``shard`` and ``state`` what it updates."""

    parameters: dict[str, Array]
    shard: Array
    state: OptimizerState


def train(plan: Plan, optimizer: Optimizer, parameters: Tensors, gradient: Gradient, steps: int) -> list[Rank]:
    """Train that many steps, and return the state of every rank. ValueError if names or shapes differ."""
    layout = partition(plan)
    ranks = []
    for index in range(plan.world_size):
        shard = to_shards(layout, parameters)[index % layout.world_size]
        ranks.append(Rank({} if plan.stage == 3 else copy(parameters), shard, fresh_state(optimizer, shard)))
    for step in range(steps):
        means = own_gradients(plan, layout, ranks, gradient, step)
        for rank, mean in zip(ranks, means, strict=True):
            rank.shard, rank.state = update(optimizer, rank.shard, mean, rank.state)
        if plan.stage < 3:
            for rank, whole in zip(ranks, all_gather_parameters(plan, layout, ranks), strict=True):
                rank.parameters = whole
    return ranks


def partition(plan: Plan) -> Layout:
    """The layout of updates: all layers' shards side by side; at stage 0 every rank updates everything."""
    layout = join(plan.layers)
    return flat(layout.shapes, 1) if plan.stage == 0 else layout


def own_gradients(plan: Plan, layout: Layout, ranks: Sequence[Rank], gradient: Gradient, step: int) -> list[Array]:
    """Per rank, its slice of: sum over synchronizations of the mean over ranks of what accumulated since the last."""
    own = [np.zeros_like(rank.shard) for rank in ranks]
    pending = [zeros(layout) for _ in ranks]
    for micro_batch in range(plan.micro_batches):
        seen = all_gather_parameters(plan, layout, ranks) if plan.stage == 3 else [rank.parameters for rank in ranks]
        for rank, whole in enumerate(seen):
            pending[rank] = add(pending[rank], gradient(step, micro_batch, rank, copy(whole)))
        if plan.synchronize_each or micro_batch == plan.micro_batches - 1:
            reduced = reduce_gradients(plan, layout, pending)
            own = [total + mean for total, mean in zip(own, reduced, strict=True)]
            pending = [zeros(layout) for _ in ranks]
    return own


def reduce_gradients(plan: Plan, layout: Layout, gradients: Sequence[Tensors]) -> list[Array]:
    """Per rank, its slice of the mean: sum over ranks in rank order, inside shard groups and then across, over N.

    Stage 0, and stage 1 on request: all-reduce, then each takes its slice. Else reduce-scatter in the shard group, then
    all-reduce of the slice across replicas.
    """
    slices = [to_shards(layout, tensors) for tensors in gradients]
    if plan.stage == 0 or plan.all_reduce_gradients:
        summed = all_reduce([np.concatenate(pieces) for pieces in slices])
        offsets = np.cumsum([0, *layout.counts])
        own = [rank % layout.world_size for rank in range(plan.world_size)]
        sums = [total[offsets[index] : offsets[index + 1]] for index, total in zip(own, summed, strict=True)]
    else:
        sums = [piece for group in shard_groups(plan) for piece in reduce_scatter([slices[rank] for rank in group])]
        for group in replica_groups(plan):
            sums = on_group(all_reduce, sums, group)
    return [total / plan.world_size for total in sums]


def all_gather_parameters(plan: Plan, layout: Layout, ranks: Sequence[Rank]) -> list[dict[str, Array]]:
    """Whole parameters on every rank, from the shards of its group; at stage 0 from its own."""
    if plan.stage == 0:
        return [from_shards(layout, [rank.shard]) for rank in ranks]
    gathered = [shards for group in shard_groups(plan) for shards in all_gather([ranks[rank].shard for rank in group])]
    return [from_shards(layout, shards) for shards in gathered]


def train_unsharded(
    plan: Plan, optimizer: Optimizer, parameters: Tensors, gradient: Gradient, steps: int
) -> tuple[dict[str, Array], dict[str, OptimizerState]]:
    """The same training in one process on whole tensors: what sharding must not change. Parameters and state by name.

    Of the plan it takes the number of ranks and micro-batches, when gradients are averaged, and the order of summing:
    ranks of a shard group one by one, then the groups (all ranks one by one where the plan all-reduces).
    """
    group = plan.world_size if plan.stage == 0 or plan.all_reduce_gradients else plan.shards
    whole = copy(parameters)
    state = {name: fresh_state(optimizer, tensor) for name, tensor in whole.items()}
    for step in range(steps):
        gradients = [
            [gradient(step, micro_batch, rank, copy(whole)) for rank in range(plan.world_size)]
            for micro_batch in range(plan.micro_batches)
        ]
        for name in whole:
            local = [[tensors[name] for tensors in every_rank] for every_rank in gradients]
            if not plan.synchronize_each:
                local = [[add_up(of_one_rank) for of_one_rank in zip(*local, strict=True)]]
            mean = add_up([average(tensors, group) for tensors in local])
            whole[name], state[name] = update(optimizer, whole[name], mean, state[name])
    return whole, state


def average(tensors: Sequence[Array], group: int) -> Array:
    """Sum inside groups of consecutive ranks, then over the groups, then divided by N."""
    sums = [add_up(tensors[begin : begin + group]) for begin in range(0, len(tensors), group)]
    return add_up(sums) / len(tensors)


def add_up(tensors: Sequence[Array]) -> Array:
    """((0 + x[0]) + x[1]) + ..."""
    return sum(tensors, np.zeros_like(tensors[0]))


def fresh_state(optimizer: Optimizer, values: Array) -> OptimizerState:
    """Optimizer state before the first step, for parameters of this shape."""
    return SGDState() if isinstance(optimizer, SGD) else AdamState(np.zeros_like(values), np.zeros_like(values))


def update(optimizer: Optimizer, values: Array, gradient: Array, state: OptimizerState) -> tuple[Array, OptimizerState]:
    """One optimizer step on a slice or on a whole tensor."""
    if isinstance(optimizer, SGD) and isinstance(state, SGDState):
        return sgd_step(optimizer, values, gradient, state)
    if isinstance(optimizer, Adam) and isinstance(state, AdamState):
        return adam_step(optimizer, values, gradient, state)
    raise ValueError(f"{type(state).__name__} is not the state of {type(optimizer).__name__}")


def copy(tensors: Tensors) -> dict[str, Array]:
    """Tensors of their own memory: no rank shares any with another."""
    return {name: np.array(tensor, np.float64) for name, tensor in tensors.items()}


def zeros(layout: Layout) -> dict[str, Array]:
    """Whole gradients before any micro-batch."""
    return {name: np.zeros(shape) for name, shape in layout.shapes.items()}


def add(left: Tensors, right: Tensors) -> dict[str, Array]:
    """left + right, tensor by tensor."""
    return {name: left[name] + right[name] for name in left}
