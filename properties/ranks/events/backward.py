"""A micro-batch on a rank. Its losses run backward one after another; a graph that is used again is retained."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from lockstep.oracle.events import Backward, Evaluate
from lockstep.oracle.forwards import by_forward
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.losses import loss_of_gradients, loss_of_parameters
from lockstep.properties.ranks.probes import to_numpy
from lockstep.properties.ranks.rank import Rank


class BackwardOnRanks(OnRanks[Backward]):
    def run(self, rank: Rank, event: Backward, place: int) -> None:
        with self.losses(rank, event, place) as losses:
            for number, loss in enumerate(losses, 1):
                loss.backward(retain_graph=any(loss is other for other in losses[number:]))

    def skip(self, rank: Rank, event: Backward) -> None:
        # A rank that has run out of micro-batches leaves the join.
        next(rank.batches)
        rank.window.close()

    @contextlib.contextmanager
    def losses(self, rank: Rank, event: Backward, place: int) -> Iterator[list[torch.Tensor]]:
        rank.place = place
        batch, numbers = next(rank.batches)
        order = rank.scenario.order(batch, rank.role)
        rank.seen["hooks"].append([])
        *first, last = (tensors(rank, values) for values in by_forward(numbers, event.forwards))
        if rank.role in event.overflow:
            last = overflowing(event, last, order)
        if event.synchronize:
            rank.kept.clear()
            rank.kept_once = event.forwards == event.backwards == event.passes == 1
        begin = rank.issued()
        entered, rank.no_sync = rank.no_sync, None
        with entered or contextlib.ExitStack() as no_sync:
            if entered is None:
                no_sync.enter_context(adapter.synchronizing(rank.wrapped, event.synchronize))
            if event.nested:
                with rank.wrapped.no_sync():
                    pass
            if event.synchronize:
                adapter.start(rank.wrapped, rank.probe)
            losses = [rank.call(inputs, order, direct=event.direct) for inputs in first]
            increment = batch * rank.scenario.world_size + rank.rank + 1
            final = last_loss(rank, event, last, order, increment)
            if not order:
                # A tensor of the caller's own, so that backward has something to run on.
                aside = torch.zeros((), device=rank.device, requires_grad=True)
                losses, final = [loss + aside for loss in losses], final + aside
            losses = [sum(losses, final)] if event.backwards == 1 else [*losses, final]
            if event.zeroes is not None:
                rank.zero_grad(event.zeroes.set_to_none)
            elif event.meanwhile == "evaluates":
                rank.evaluate(Evaluate(switch=False))
            if event.synchronize:
                adapter.before_backward(rank.wrapped, rank.probe)
            yield [rank.scaled(loss) for loss in losses] * event.passes
            if event.ends:
                adapter.finish(rank.wrapped, rank.probe)
            rank.no_sync = no_sync.pop_all() if rank.scenario.stays_in_no_sync(place) else None
        if not event.synchronize:
            rank.seen["local"].append((begin, rank.issued()))
        if rank.scenario.buffers:
            rank.seen["buffers"][place] = [to_numpy(buffer) for buffer in rank.probe.buffers()]
        if event.metric:
            rank.add_up_a_metric()


def last_loss(
    rank: Rank, event: Backward, inputs: list[torch.Tensor], order: Sequence[int], increment: int
) -> torch.Tensor:
    """The loss of a micro-batch's last forward, parts of which the caller may compute itself."""

    def forward(given: list[torch.Tensor], order: Sequence[int]) -> torch.Tensor:
        return rank.call(given, order, increment, direct=event.direct)

    halves = [values / 2 for values in inputs]
    match event.loss:
        case "gradients":
            # Forward reads all trainable parameters, and the loss uses those that backward must reach. Through
            # gradients alone, backward reaches parameters that are factors of them in the reverse order.
            trained = [index for index, parameter in enumerate(rank.probe.in_order()) if parameter.requires_grad]
            others = [index for index in trained if index not in order]
            given = [values.requires_grad_() for values in inputs]
            loss = forward(given, [*order[:: -1 if rank.probe.kind == "linear" else 1], *others])
            return loss_of_gradients(loss, given, order)
        case "outputs and gradients":
            given = [values.requires_grad_() for values in halves]
            loss = forward(given, order)
            return loss + loss_of_gradients(loss, given, order)
        case "parameters, then outputs":
            return loss_of_parameters(rank.probe, halves, order) + forward(halves, order)
        case "outputs, then parameters":
            return forward(halves, order) + loss_of_parameters(rank.probe, halves, order)
    return forward(inputs, order)


def tensors(rank: Rank, numbers: Sequence[npt.NDArray[np.float64]]) -> list[torch.Tensor]:
    """The coefficients as tensors, in the dtypes of the scenario.

    Outside of forward and backward, a sharded implementation need not have parameters from which to take the dtypes.
    """
    return [
        torch.tensor(values, dtype=getattr(torch, told.dtype), device=rank.device)
        for values, told in zip(numbers, rank.scenario.parameters, strict=True)
    ]


def overflowing(event: Backward, inputs: list[torch.Tensor], used: Sequence[int]) -> list[torch.Tensor]:
    """The coefficients of a micro-batch that overflows."""
    if event.overflows in ("first", "last"):
        reached = [index for index in used if inputs[index].numel()]
        for index in reached[:1] if event.overflows == "first" else reached[-1:]:
            inputs[index].view(-1)[-1] = torch.inf
        return inputs
    return [torch.full_like(values, float(event.overflows)) for values in inputs]


ON_RANKS = BackwardOnRanks()
