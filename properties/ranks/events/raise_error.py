"""A micro-batch or evaluation that ends with the caller's own error on one rank or on all. The caller catches it."""

import contextlib

import torch

from lockstep.oracle.events import Evaluate, Raise
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.events.on_ranks import OnRanks
from lockstep.properties.ranks.probes import CallersError
from lockstep.properties.ranks.rank import Rank


class RaiseOnRanks(OnRanks[Raise]):
    def run(self, rank: Rank, event: Raise, place: int) -> None:
        with contextlib.ExitStack() as no_sync:
            if event.nested:
                no_sync.enter_context(rank.wrapped.no_sync())
            if event.rank in (None, rank.role):
                fail(rank, event)
            if event.drops_gradients:
                rank.zero_grad(set_to_none=True)
            rank.no_sync = no_sync.pop_all() if rank.scenario.stays_in_no_sync(place) else None


def fail(rank: Rank, event: Raise) -> None:
    """Run a micro-batch of NaN up to the error, and handle the error as a caller does.

    Backward reaches parameters in reverse order of registration, as in most models. Some buckets may be in flight by
    then.
    """
    inputs = rank.filled_with(torch.nan)
    order = [index for index, parameter in enumerate(rank.probe.in_order()) if parameter.requires_grad][::-1]
    saved = [buffer.clone() for buffer in rank.probe.buffers()]
    rank.seen["hooks"].append([])
    rank.fails = event.where
    try:
        with adapter.synchronizing(rank.wrapped, event.synchronize):
            if event.where == "no_sync":
                raise KeyboardInterrupt  # like Ctrl-C, it is no Exception
            if event.where == "evaluation":
                rank.evaluate(Evaluate(), fails="module")
            else:
                rank.scaled(rank.call(inputs, order, fails=event.where)).backward()
        if not event.drops_gradients:  # otherwise there may be no hook or node that raises
            rank.seen["complaints"].append(f"the caller's own error in {event.where} never came to the caller")
    except (CallersError, KeyboardInterrupt):
        pass
    rank.fails = ""
    rank.seen["hooks"].pop()
    for buffer, values in zip(rank.probe.buffers(), saved, strict=True):
        buffer.copy_(values)


ON_RANKS = RaiseOnRanks()
