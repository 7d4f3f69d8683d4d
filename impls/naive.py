"""Naive data parallelism: after backward, one blocking all-reduce per parameter, in registration order."""

import torch.distributed as dist

from lockstep.impls.wrapper import ROBUST, DataParallel, add_over_ranks


class NaiveDataParallel(DataParallel):
    """Averages every gradient after each backward. Every rank must have a gradient for the same parameters."""

    claims = {
        **ROBUST,
        "accumulation": False,
        "backwards": "anywhere",
        "reentrant_checkpointing": "any",
        "direct_forwards": True,
        "moved_parameters": True,
        "unfreezing": True,
    }

    def finish_gradient_synchronization(self) -> None:
        """Sums over ranks, then divides by their number."""
        for parameter in self.trained:
            if parameter.grad is not None:
                add_over_ranks(parameter.grad, self.group)
                parameter.grad /= dist.get_world_size(self.group)


class NaiveAccumulation(NaiveDataParallel):
    """Naive data parallelism in which the first k - 1 of k micro-batches stay local under `no_sync`: a step
    communicates once.
    """

    claims = {**NaiveDataParallel.claims, "accumulation": True, "ends_in_no_sync": True}

    def finish_gradient_synchronization(self) -> None:
        """Averages what has accumulated, unless inside `no_sync`."""
        if self.synchronize:
            super().finish_gradient_synchronization()
