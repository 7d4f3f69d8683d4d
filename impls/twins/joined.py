"""Ranks that run out of micro-batches, told to one another in another way, and right."""

import torch
import torch.distributed as dist

from lockstep.impls.joined import Joined


class GathersWhoRemains(Joined):
    """Every rank gathers what every other has to say; in the end the lowest of the last ranks gives its model."""

    odd = "who remains is gathered, not summed, and the model comes from the lowest of the ranks that were last"

    def meet(self, present: bool, reduces: bool) -> int:
        """Counts by itself."""
        said = torch.tensor([present, reduces], device=next(self.module.parameters()).device)
        everybody = [torch.empty_like(said) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, said)
        self._remaining, self._reducing = (sum(bool(each[place]) for each in everybody) for place in range(2))
        return self._remaining

    @torch.no_grad()
    def agree(self, candidate: int) -> None:
        """The candidates are alike."""
        mine = torch.tensor(candidate, device=next(self.module.parameters()).device)
        ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, mine)
        root = min(int(each) for each in ranks if each >= 0)
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            dist.broadcast(tensor, src=root)
