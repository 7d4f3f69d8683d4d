"""The cost of a training step, asked in one question: bytes held, bytes moved, seconds, and what fits.

`lockstep cost` prints the answers. Figures are exact for the numbers in the question; times follow its model of a
machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from lockstep.oracle import batches
from lockstep.oracle.checks import check_at_least
from lockstep.oracle.cost import collective_time, gathers, hierarchical_time, memory, moved
from lockstep.oracle.language_models import Transformer, activations
from lockstep.oracle.overlap import Timeline, best_bucket_size, timeline
from lockstep.oracle.played import Act, Compute, Key, Launch, Played, Wait, play
from lockstep.oracle.recipes import Recipe, recipe

USUAL_CAP = 25 * 2**20  # bytes, as torch's DDP has it
CAPS = tuple(2**power for power in range(16, 34))
FLOPS = 6  # per parameter and token: 2 forward, 4 backward (Kaplan et al., 2020)


@dataclass(frozen=True)
class Question:
    """A training step on a machine.

    tensors      elements of each tensor, in the order in which they are registered
    layers       the number of units that stage 3 gathers
    alpha        seconds of one message
    bandwidth    bytes per second of one rank
    flops        operations per second of one rank
    node         ranks per node; 0: all ranks are in one node
    between      bytes per second of one rank between nodes
    """

    tensors: tuple[int, ...]
    ranks: int = 8
    layers: int = 32
    precision: Recipe = field(default_factory=lambda: recipe("bfloat16", "adam"))
    cap: int = USUAL_CAP
    alpha: Fraction = Fraction(20, 10**6)
    bandwidth: Fraction = Fraction(150 * 10**9)
    flops: Fraction = Fraction(150 * 10**12)
    micro_batch: int = 2
    sequence: int = 1024
    batch: int | None = None
    node: int = 0
    between: Fraction = Fraction(25 * 10**9)
    transformer: Transformer | None = None

    def __post_init__(self) -> None:
        check_at_least(1, ranks=self.ranks, layers=self.layers, micro_batch=self.micro_batch, sequence=self.sequence)
        check_at_least(0, cap=self.cap, node=self.node)
        if not self.tensors or min(self.tensors) < 0:
            raise ValueError("a model has at least one tensor, none of fewer than 0 elements")
        if self.node and self.ranks % self.node:
            raise ValueError(f"{self.ranks} ranks are not whole nodes of {self.node}: give a multiple of it")

    @cached_property
    def parameters(self) -> int:
        """Psi: elements of all tensors."""
        return sum(self.tensors)

    def travel(self, collective: str, size: int | Fraction) -> Fraction:
        """Seconds of a collective of so many bytes, on all ranks, as one ring."""
        slowest = min(self.bandwidth, self.between) if 0 < self.node < self.ranks else self.bandwidth
        return collective_time(collective, size, self.ranks, self.alpha, slowest)

    @property
    def seconds(self) -> tuple[Fraction, Fraction, Fraction]:
        """Of forward, backward and optimizer, for one micro-batch: 2, 4 and 0 operations per parameter and token.

        The optimizer reads and writes 16 bytes per parameter: a hundredth of backward stands for it.
        """
        forward = 2 * self.parameters * self.micro_batch * self.sequence / self.flops
        return forward, 2 * forward, forward / 50


@dataclass(frozen=True)
class Volume:
    """One kind of collective in a step: calls, and bytes that each rank sends."""

    collective: str
    calls: int
    bytes: Fraction


def bytes_held(asked: Question, stage: int, ranks: int | None = None) -> dict[str, Fraction]:
    """Bytes per rank by kind: parameters, gradients, optimizer; and activations where the model is a transformer."""
    shards, precision = ranks or asked.ranks, asked.precision
    nothing = replace(precision, parameter=0, gradient=0, fp32_gradient=0, master=0, state=0)
    kinds = {
        "parameters": replace(nothing, parameter=precision.parameter),
        "gradients": replace(nothing, gradient=precision.gradient, fp32_gradient=precision.fp32_gradient),
        "optimizer": replace(nothing, master=precision.master, state=precision.state),
    }
    held = {kind: memory(stage, asked.parameters, shards, of) for kind, of in kinds.items()}
    if asked.transformer is not None:
        held["activations (approx.)"] = activations(asked.transformer, asked.micro_batch, asked.sequence)
    return held


def volumes(asked: Question, stage: int) -> list[Volume]:
    """The collectives of a step of one micro-batch, by the usual schedule of a stage."""
    precision, share = asked.precision, Fraction(asked.ranks - 1, asked.ranks)
    gradients, parameters = asked.parameters * precision.wire * share, asked.parameters * precision.parameter * share
    buckets = len(step(asked).buckets)
    if stage == 0:
        return [Volume("all_reduce", buckets, 2 * gradients)]
    found = [Volume("reduce_scatter", asked.layers if stage == 3 else buckets, gradients)]
    if stage < 3:
        return [*found, Volume("all_gather", asked.layers, parameters)]
    return [*found, Volume("all_gather", gathers(asked.layers), 2 * parameters)]


def elements_moved(asked: Question, stage: int) -> Fraction:
    """Elements that each rank sends in a step, over Psi."""
    return moved(stage, asked.parameters, asked.ranks) / asked.parameters


def step(asked: Question, cap: int | None = None) -> Timeline:
    """One micro-batch at stage 0: buckets of gradients, the last registered first, that travel while backward runs."""
    forward, backward, optimizer = asked.seconds
    order = asked.tensors[::-1]
    shares = [backward * Fraction(count, asked.parameters) for count in order] if asked.parameters else []
    sizes = [count * asked.precision.wire for count in order]
    travel: Callable[[int], Fraction] = lambda size: asked.travel("all_reduce", size)  # noqa: E731
    return timeline(forward, shares, optimizer, sizes, asked.cap if cap is None else cap, travel)


def sweep(asked: Question, caps: Sequence[int] = CAPS) -> tuple[dict[int, Fraction], int]:
    """Seconds of a step by bucket cap, that of the question among them, and the best cap."""
    wanted = sorted({*caps, asked.cap})
    steps = {cap: step(asked, cap).step for cap in wanted}
    return steps, best_bucket_size(wanted, lambda cap: steps[cap])


def scaling(asked: Question, ranks: Sequence[int]) -> dict[int, Fraction]:
    """Scaling efficiency by number of ranks, at the same micro-batch. Numbers that are no whole nodes are left out."""
    found = {}
    for each in ranks:
        node = asked.node if each > asked.node else 0
        if not node or each % node == 0:
            found[each] = step(replace(asked, ranks=each, node=node)).efficiency
    return found


def powers(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to the given number, and it."""
    return tuple(sorted({*(2**power for power in range(most.bit_length())), most}))


def all_reduces(asked: Question) -> dict[str, Fraction]:
    """Seconds of the all-reduce of all gradients: as one ring; and, if there are nodes, in nodes and between them."""
    size = asked.parameters * asked.precision.wire
    found = {"one ring": asked.travel("all_reduce", size)}
    if 0 < asked.node < asked.ranks:
        nodes = asked.ranks // asked.node
        within, across = (asked.alpha, asked.bandwidth), (asked.alpha, asked.between)
        found["hierarchical"] = hierarchical_time(size, asked.node, nodes, within, across)
    return found


def accumulation(asked: Question) -> str:
    """The batch in words: how many micro-batches make it, or what would fit."""
    if asked.batch is None:
        total = batches.global_batch(asked.micro_batch, 1, asked.ranks)
        return f"{total} samples per step, {batches.tokens(total, asked.sequence):,} tokens, without accumulation"
    try:
        steps = batches.accumulation_steps(asked.batch, asked.micro_batch, asked.ranks)
    except ValueError as error:
        return str(error)
    tokens = batches.tokens(asked.batch, asked.sequence)
    return (
        f"{asked.batch} samples per step, {tokens:,} tokens: {steps} micro-batches of {asked.micro_batch} on each rank"
    )


def prefetched(asked: Question, depth: int) -> Played:
    """One micro-batch at stage 3, whose layers are gathered ``depth`` layers ahead of their use.

    Layers are equal. Each is gathered before its forward and before its backward; its gradient is scattered behind it.
    """
    check_at_least(0, depth=depth)
    layers = asked.layers
    forward, backward, optimizer = (seconds / layers for seconds in asked.seconds)
    gathered = asked.travel("all_gather", Fraction(asked.parameters * asked.precision.parameter, layers))
    scattered = asked.travel("reduce_scatter", Fraction(asked.parameters * asked.precision.wire, layers))
    uses = [("forward", layer) for layer in range(layers)] + [("backward", layer) for layer in reversed(range(layers))]
    acts: list[Act] = []
    seconds: dict[Key, Fraction] = {}
    launched = 0
    scatters: list[Key] = []
    for place, (kind, layer) in enumerate(uses):
        # Reduce-scatters have a channel of their own, as FSDP2 has it: a gather must not wait behind them.
        for ahead in range(launched, min(place + depth, len(uses) - 1) + 1):
            seconds["gathers", ahead] = gathered
            acts.append(Launch(("gathers", ahead)))
            launched = ahead + 1
        acts.append(Wait(("gathers", place)))
        if kind == "forward":
            acts.append(Compute("forward", str(layer), forward))
        else:
            acts.append(Compute("backward", str(layer), backward))
            scatters.append(("scatters", len(scatters)))
            seconds[scatters[-1]] = scattered
            acts.append(Launch(scatters[-1]))
    acts += [*map(Wait, scatters), Compute("optimizer", "", optimizer * layers)]
    return play([acts], dict.fromkeys(seconds, (0,)), seconds)
