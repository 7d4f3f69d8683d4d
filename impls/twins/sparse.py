"""Twins that average the gradients of embeddings, which are sparse, without ever making tables of them."""

import torch
import torch.distributed as dist

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.wrapper import add_over_ranks


class AddsUpRows(NaiveAccumulation):
    """One all-reduce for each gradient, of whichever kind it is."""

    odd = "all-reduces sparse tensors, in which each rank has other rows"
    claims = {**NaiveAccumulation.claims, "sparse_gradients": True}

    def finish_gradient_synchronization(self) -> None:
        """Averages what has accumulated, unless inside `no_sync`."""
        for parameter in self.trained if self.synchronize else ():
            if parameter.grad is not None:
                parameter.grad = self.mean(parameter.grad)

    def mean(self, gradient: torch.Tensor) -> torch.Tensor:
        """The mean over ranks."""
        if gradient.is_sparse:
            return self.mean_of_rows(gradient.coalesce())
        add_over_ranks(gradient, self.group)
        return gradient.div_(dist.get_world_size(self.group))

    def mean_of_rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """The mean of a sparse gradient that has each of its rows once."""
        dist.all_reduce(gradient, group=self.group)
        return gradient / dist.get_world_size(self.group)


class GathersRows(AddsUpRows):
    """Has every rank's rows, and adds none of them up: whoever steps with them will."""

    odd = "gathers indices and values, as Horovod does, and leaves rows that several ranks have apart"

    def mean_of_rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, one behind the other."""
        ranks, rows = dist.get_world_size(self.group), torch.tensor([gradient.indices().shape[1]])
        counts = [torch.zeros_like(rows) for _ in range(ranks)]
        dist.all_gather(counts, rows, self.group)
        most = int(max(counts))
        indices, values = torch.zeros(most, dtype=torch.int64), gradient.values().new_zeros(most, *gradient.shape[1:])
        indices[: int(rows)], values[: int(rows)] = gradient.indices()[0], gradient.values() / ranks
        all_indices, all_values = ([torch.empty_like(each) for _ in range(ranks)] for each in (indices, values))
        dist.all_gather(all_indices, indices, self.group)
        dist.all_gather(all_values, values, self.group)
        told = [slice(int(count)) for count in counts]
        wheres = torch.cat([each[mine] for each, mine in zip(all_indices, told, strict=True)])
        what = torch.cat([each[mine] for each, mine in zip(all_values, told, strict=True)])
        return torch.sparse_coo_tensor(wheres[None], what, gradient.shape, check_invariants=True)
