"""One training step of ZeRO stages 0 to 3 and HSDP as a state machine: the bytes that each rank holds, and its
messages.

Source: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020:
stage 1 is P_os, stage 2 P_os+g, stage 3 P_os+g+p; stage 0 is plain data parallelism. HSDP: Zhao et al., "PyTorch FSDP",
2023, section 3.2.2. Memory counts what is held during an event, without temporaries inside one operation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from lockstep.oracle.checks import check_at_least, check_stage
from lockstep.oracle.recipes import Recipe
from lockstep.oracle.shards import Layout


@dataclass(frozen=True)
class Plan:
    """The plan of a training step: the layers, ranks, stage and precision.

    layers                  one layout per layer, each over the shard group of S ranks. The world has replicas x S
                            ranks; rank q S + s holds shard s of replica q (HSDP for replicas > 1)
    synchronize_each        every micro-batch reduces its gradients; else only the last one does (``no_sync``)
    keep_last               the number of last layers that stage 3 keeps gathered from forward to backward. 0 gathers
                            each layer twice (2 L gathers), 1 spares one (2 L - 1), L gathers once per micro-batch
    prefetch                the number of layers gathered ahead of their use
    all_reduce_gradients    stage 1 reduces the whole gradient on every rank, as DDP beside a sharded optimizer does
    activations             bytes that each layer's forward leaves for its backward, per micro-batch; (): not counted
    """

    layers: tuple[Layout, ...]
    stage: int
    recipe: Recipe
    replicas: int = 1
    micro_batches: int = 1
    synchronize_each: bool = True
    keep_last: int = 0
    prefetch: int = 0
    all_reduce_gradients: bool = False
    activations: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = sorted({layer.world_size for layer in self.layers})
        if len(sizes) != 1:
            raise ValueError(f"layers cut over {sizes} ranks: give at least one layer, all over one shard group")
        check_stage(self.stage)
        check_at_least(1, replicas=self.replicas, micro_batches=self.micro_batches)
        check_at_least(0, keep_last=self.keep_last, prefetch=self.prefetch)
        if self.replicas > 1 and self.stage == 0:
            raise ValueError(f"{self.replicas} replicas at stage 0, which shards nothing: give stage 1, 2 or 3")
        if self.keep_last > len(self.layers):
            raise ValueError(
                f"keep_last {self.keep_last} of {len(self.layers)} layers: give at most {len(self.layers)}"
            )
        if (self.keep_last or self.prefetch) and self.stage != 3:
            raise ValueError(f"keep_last or prefetch at stage {self.stage}: only stage 3 gathers layers")
        if self.all_reduce_gradients and self.stage != 1:
            raise ValueError(f"all_reduce_gradients at stage {self.stage}: it is a choice of stage 1 only")
        if self.activations and len(self.activations) != len(self.layers):
            raise ValueError(f"{len(self.activations)} activation sizes for {len(self.layers)} layers: give one each")

    @property
    def shards(self) -> int:
        """S: ranks of one shard group."""
        return self.layers[0].world_size

    @property
    def world_size(self) -> int:
        """N = replicas x S."""
        return self.replicas * self.shards

    @property
    def accumulates_whole(self) -> bool:
        """Whole gradients outlive their layer's backward: below stage 2, or while ``no_sync`` puts off reducing."""
        return self.stage < 2 or (self.micro_batches > 1 and not self.synchronize_each)


@dataclass(frozen=True)
class Held:
    """Bytes that one rank holds, by kind."""

    parameters: int
    gathered: int
    gradients: int
    fp32_gradients: int
    master_weights: int
    optimizer_state: int
    buffers: int
    activations: int

    @property
    def total(self) -> int:
        """All kinds together."""
        return sum(getattr(self, kind.name) for kind in fields(self))


@dataclass(frozen=True)
class Message:
    """One collective: its group of ranks, the elements D of its whole (padded) buffer, and bytes per element."""

    collective: str
    group: tuple[int, ...]
    elements: int
    element_bytes: int


@dataclass(frozen=True)
class Moment:
    """A moment of a step: the action, its layer (-1: all) and micro-batch (-1: after them), bytes held, messages."""

    event: str
    layer: int
    micro_batch: int
    held: tuple[Held, ...]
    messages: tuple[Message, ...]


@dataclass
class Memory:
    """Layers by what is held of them beyond the owned parameters and optimizer state; elements in the send buffer."""

    gathered: set[int] = field(default_factory=set)
    whole_gradients: set[int] = field(default_factory=set)
    own_gradients: set[int] = field(default_factory=set)
    activations: list[int] = field(default_factory=list)
    buffer: int = 0


def training_step(plan: Plan) -> Iterator[Moment]:
    """k micro-batches of forward and backward, then the optimizer; ends as it began, without gradients."""
    memory = Memory()
    yield moment(plan, memory, "rest")
    for micro_batch in range(plan.micro_batches):
        for layer in range(len(plan.layers)):
            yield from forward(plan, memory, layer, micro_batch)
        for layer in reversed(range(len(plan.layers))):
            yield from backward(plan, memory, layer, micro_batch)
    yield from optimizer_step(plan, memory)


def forward(plan: Plan, memory: Memory, layer: int, micro_batch: int) -> Iterator[Moment]:
    """Stage 3: all-gather the layer (and those prefetched) before, discard it after unless it is kept."""
    for wanted in range(layer, min(layer + plan.prefetch, len(plan.layers) - 1) + 1):
        yield from all_gather_layer(plan, memory, wanted, micro_batch)
    if plan.activations:
        memory.activations.append(layer)
    yield moment(plan, memory, "forward", layer, micro_batch)
    if plan.stage == 3 and layer < len(plan.layers) - plan.keep_last:
        memory.gathered.remove(layer)
        yield moment(plan, memory, "discard", layer, micro_batch)


def backward(plan: Plan, memory: Memory, layer: int, micro_batch: int) -> Iterator[Moment]:
    """Stage 3: all-gather the layer again, discard it after. Its gradient is whole now; reduce it or accumulate it."""
    for wanted in range(layer, max(layer - plan.prefetch, 0) - 1, -1):
        yield from all_gather_layer(plan, memory, wanted, micro_batch)
    memory.whole_gradients.add(layer)
    yield moment(plan, memory, "backward", layer, micro_batch)
    if plan.activations:
        memory.activations.remove(layer)
    if plan.stage == 3:
        memory.gathered.remove(layer)
        yield moment(plan, memory, "discard", layer, micro_batch)
    if plan.synchronize_each or micro_batch == plan.micro_batches - 1:
        yield from reduce_gradients(plan, memory, layer, micro_batch)


def all_gather_layer(plan: Plan, memory: Memory, layer: int, micro_batch: int) -> Iterator[Moment]:
    """Stage 3: every rank receives the shards of the others, in each shard group, unless the layer is here already."""
    if plan.stage == 3 and layer not in memory.gathered:
        memory.gathered.add(layer)
        sent = send("all_gather", shard_groups(plan), sum(plan.layers[layer].padded), plan.recipe.parameter)
        yield moment(plan, memory, "all_gather", layer, micro_batch, sent)


def reduce_gradients(plan: Plan, memory: Memory, layer: int, micro_batch: int) -> Iterator[Moment]:
    """Stage 0: all-reduce. Stages 1 to 3: reduce-scatter, each rank keeping the slice it owns. HSDP: then all-reduce
    that slice across replicas. Stages 2 and 3 free the whole gradient once its slice is reduced.
    """
    cut, wire = plan.layers[layer], plan.recipe.wire
    if plan.stage == 0 or plan.all_reduce_gradients:
        memory.buffer = cut.elements
        sent = send("all_reduce", (tuple(range(plan.world_size)),), cut.elements, wire)
        yield moment(plan, memory, "all_reduce", layer, micro_batch, sent)
    else:
        memory.buffer = sum(cut.padded)
        sent = send("reduce_scatter", shard_groups(plan), sum(cut.padded), wire)
        yield moment(plan, memory, "reduce_scatter", layer, micro_batch, sent)
        if plan.replicas > 1:
            owners = zip(replica_groups(plan), cut.padded, strict=True)
            sent = tuple(Message("all_reduce", group, elements, wire) for group, elements in owners)
            yield moment(plan, memory, "all_reduce", layer, micro_batch, sent)
    memory.buffer = 0
    if plan.stage >= 2:
        memory.whole_gradients.remove(layer)
        memory.own_gradients.add(layer)
        yield moment(plan, memory, "free_gradient", layer, micro_batch)


def optimizer_step(plan: Plan, memory: Memory) -> Iterator[Moment]:
    """Each rank updates its own partition; stages 1 and 2 all-gather the new parameters; gradients are dropped."""
    yield moment(plan, memory, "update")
    if plan.stage in (1, 2):
        for layer in range(len(plan.layers)):
            sent = send("all_gather", shard_groups(plan), sum(plan.layers[layer].padded), plan.recipe.parameter)
            yield moment(plan, memory, "all_gather", layer, -1, sent)
    memory.whole_gradients.clear()
    memory.own_gradients.clear()
    yield moment(plan, memory, "zero_grad")


def moment(
    plan: Plan, memory: Memory, event: str, layer: int = -1, micro_batch: int = -1, messages: tuple[Message, ...] = ()
) -> Moment:
    """A record of the memory during an event, for every rank."""
    ranks = range(plan.world_size)
    return Moment(event, layer, micro_batch, tuple(held(plan, memory, rank) for rank in ranks), messages)


def held(plan: Plan, memory: Memory, rank: int) -> Held:
    """Whole layers count all their elements, sharded ones the rank's padded share; times the recipe's bytes."""
    own, bytes_of, layers = rank % plan.shards, plan.recipe, plan.layers
    whole = sum(layer.elements for layer in layers)
    state_elements = whole if plan.stage == 0 else sum(layer.state[own] for layer in layers)
    whole_gradients = sum(layers[index].elements for index in memory.whole_gradients)
    own_gradients = sum(layers[index].padded[own] for index in memory.own_gradients)
    accumulated = own_gradients + (whole_gradients if plan.accumulates_whole else 0)
    return Held(
        parameters=bytes_of.parameter * (whole if plan.stage < 3 else sum(layer.padded[own] for layer in layers)),
        gathered=bytes_of.parameter * sum(sum(layers[index].padded) for index in memory.gathered),
        gradients=bytes_of.gradient * (whole_gradients + own_gradients),
        fp32_gradients=bytes_of.fp32_gradient * accumulated,
        master_weights=bytes_of.master * state_elements,
        optimizer_state=bytes_of.state * state_elements,
        buffers=bytes_of.wire * memory.buffer,
        activations=sum(plan.activations[index] for index in memory.activations),
    )


def shard_groups(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The ranks that together hold one replica: {q S, ..., q S + S - 1} for each replica q."""
    return tuple(tuple(range(q * plan.shards, (q + 1) * plan.shards)) for q in range(plan.replicas))


def replica_groups(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The ranks that hold the same shard: {s, S + s, 2 S + s, ...} for each shard s."""
    return tuple(tuple(range(s, plan.world_size, plan.shards)) for s in range(plan.shards))


def send(
    collective: str, groups: tuple[tuple[int, ...], ...], elements: int, element_bytes: int
) -> tuple[Message, ...]:
    """The same collective in each of the groups."""
    return tuple(Message(collective, group, elements, element_bytes) for group in groups)


def peak(plan: Plan) -> tuple[int, ...]:
    """Most bytes each rank holds at any moment of the step."""
    totals = [[here.total for here in now.held] for now in training_step(plan)]
    return tuple(max(column) for column in zip(*totals, strict=True))


def messages(plan: Plan) -> tuple[Message, ...]:
    """Everything the step sends, in order."""
    return tuple(message for now in training_step(plan) for message in now.messages)
