"""The cost of data parallelism: bytes held, elements moved, time of a collective, and the part that backward hides.

Figures are exact: integers and Fractions. `oracle.estimate` answers questions with them.
"""

from collections.abc import Sequence
from fractions import Fraction

from lockstep.oracle.checks import check_at_least, check_stage
from lockstep.oracle.collectives import volume
from lockstep.oracle.recipes import Recipe
from lockstep.oracle.zero import Message

Number = int | Fraction


def memory(stage: int, parameters: int, shards: int, precision: Recipe) -> Fraction:
    """Bytes per rank at the end of backward, without buffers and activations. Psi parameters, S ranks per shard group.

        stage 0    (p + g + f + k) Psi              f: bytes of the second, fp32 gradient, or 0
        stage 1    (p + g + f) Psi + k Psi / S      k: master weights and optimizer state
        stage 2    p Psi + (g + f + k) Psi / S
        stage 3    (p + g + f + k) Psi / S          HSDP too

    Source: ZeRO (Rajbhandari et al., 2020), figure 1. Exact where S divides every layer; padding comes on top.
    """
    check_stage(stage)
    check_at_least(1, shards=shards)
    check_at_least(0, parameters=parameters)
    gradient = precision.gradient + precision.fp32_gradient
    kinds = {3: precision.parameter, 2: gradient, 1: precision.optimizer}
    return parameters * sum(
        (Fraction(size, shards if stage >= first else 1) for first, size in kinds.items()), Fraction(0)
    )


def gathers(layers: int, keep_last: int = 0) -> int:
    """All-gathers per micro-batch at stage 3: 2 L, less one for each layer kept from forward to backward."""
    check_at_least(0, layers=layers, keep_last=keep_last)
    if keep_last > layers:
        raise ValueError(f"keep_last {keep_last} of {layers} layers: give at most {layers}")
    return 2 * layers - keep_last


def moved(
    stage: int,
    parameters: int,
    shards: int,
    replicas: int = 1,
    micro_batches: int = 1,
    synchronizations: int = 1,
    kept: int = 0,
    all_reduce_gradients: bool = False,
) -> Fraction:
    """Elements per rank and step. Psi parameters, k micro-batches, s of which synchronize, S shards, R replicas.

        stage 0       2 s Psi
        stage 1, 2    (s + 1) Psi                   stage 1 with all-reduced gradients: (2 s + 1) Psi
        stage 3       (2 k + s) Psi - k kept        kept: parameters in layers kept from forward to backward

    times (S - 1) / S; HSDP adds s all-reduces of the slice, 2 (R - 1) / R s Psi / S.
    Source: ZeRO, section 7 (2 Psi, 2 Psi, 3 Psi for k = s = 1); Patarasuk and Yuan, 2009, for (S - 1) / S.
    """
    check_stage(stage)
    check_at_least(1, shards=shards, replicas=replicas, micro_batches=micro_batches, synchronizations=synchronizations)
    check_at_least(0, parameters=parameters, kept=kept)
    if synchronizations > micro_batches:
        raise ValueError(f"{synchronizations} synchronizations in {micro_batches} micro-batches: at most one in each")
    if kept > parameters or (kept and stage != 3):
        raise ValueError(f"kept {kept} of {parameters} parameters at stage {stage}: only stage 3 keeps, at most all")
    if replicas > 1 and (stage == 0 or all_reduce_gradients):
        raise ValueError(f"{replicas} replicas without a reduce-scatter of gradients: give all ranks as shards")
    if all_reduce_gradients and stage != 1:
        raise ValueError(f"all_reduce_gradients at stage {stage}: it is a choice of stage 1 only")
    factor = 2 if stage == 0 or all_reduce_gradients else 1
    elements = factor * synchronizations * parameters
    if stage in (1, 2):
        elements += parameters
    if stage == 3:
        elements += micro_batches * (2 * parameters - kept)
    across = 2 * synchronizations * Fraction(replicas - 1, replicas) * Fraction(parameters, shards)
    return Fraction(shards - 1, shards) * elements + across


def sent(messages: Sequence[Message], rank: int) -> tuple[Fraction, Fraction]:
    """(elements, bytes) of one rank in the collectives it takes part in, each by its `volume`."""
    elements = size = Fraction(0)
    for message in messages:
        if rank in message.group:
            share = volume(message.collective, message.elements, len(message.group))
            elements, size = elements + share, size + share * message.element_bytes
    return elements, size


def gibibytes(size: Number) -> Fraction:
    """Bytes / 2^30."""
    return Fraction(size) / 2**30


def alpha_beta(size: Number, alpha: Number, bandwidth: Number) -> Fraction:
    """alpha + S / B seconds: latency, plus S bytes at B bytes per second (Hockney, 1994)."""
    if bandwidth <= 0 or alpha < 0 or size < 0:
        raise ValueError(f"size {size}, alpha {alpha}, bandwidth {bandwidth}: give the first two >= 0, the last > 0")
    return alpha + Fraction(size) / bandwidth


def collective_time(collective: str, size: Number, world_size: int, alpha: Number, bandwidth: Number) -> Fraction:
    """Seconds for a tensor of S bytes on N ranks: latency of its steps, plus its bytes over B.

        all_reduce                    2 (N - 1) alpha + 2 (N - 1) / N S / B    ring
        reduce_scatter, all_gather    (N - 1) alpha + (N - 1) / N S / B        ring
        broadcast, reduce             ceil(log2 N) (alpha + S / B)             binomial tree
        scatter, gather               ceil(log2 N) alpha + (N - 1) / N S / B   binomial tree

    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005;
    arithmetic of the reductions is left out.
    """
    check_at_least(1, world_size=world_size)
    levels, others = (world_size - 1).bit_length(), Fraction(world_size - 1, world_size)
    costs = {
        "all_reduce": (2 * (world_size - 1), 2 * others),
        "reduce_scatter": (world_size - 1, others),
        "all_gather": (world_size - 1, others),
        "broadcast": (levels, Fraction(levels)),
        "reduce": (levels, Fraction(levels)),
        "scatter": (levels, others),
        "gather": (levels, others),
    }
    if collective not in costs:
        raise ValueError(f"no time known for {collective!r}: it must be one of {', '.join(costs)}")
    steps, share = costs[collective]
    return alpha_beta(share * size, steps * alpha, bandwidth)


def hierarchical_time(
    size: Number, node: int, nodes: int, within: tuple[Number, Number], between: tuple[Number, Number]
) -> Fraction:
    """Seconds for an all-reduce of S bytes on M nodes of G ranks, with (alpha, bandwidth) in nodes and between them.

        reduce-scatter in each node + all-reduce of S / G between equal ranks of the nodes + all-gather in each node

    Source: Mikami et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash", 2018, in two levels.
    """
    check_at_least(1, node=node, nodes=nodes)
    inside = collective_time("reduce_scatter", size, node, *within) + collective_time("all_gather", size, node, *within)
    return inside + collective_time("all_reduce", Fraction(size) / node, nodes, *between)


def scaling_efficiency(throughput: Number, world_size: int, throughput_of_one: Number) -> Fraction:
    """Throughput on N / (N x throughput on 1), in the same unit."""
    check_at_least(1, world_size=world_size)
    if throughput_of_one <= 0:
        raise ValueError(f"throughput of one rank {throughput_of_one}: give more than 0")
    return Fraction(throughput) / (world_size * Fraction(throughput_of_one))
