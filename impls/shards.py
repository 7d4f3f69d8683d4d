"""Parameters end to end, cut into one slice for each rank: the owner of each element, and the collectives on them."""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.wrapper import Group


class Flat:
    """Parameters of one dtype, end to end in row-major order. Of n ranks, rank r owns elements r s to (r + 1) s - 1.

    s = ceil(total / n), so the last ranks may own less, or nothing. Only tensors that travel are padded. ``owned``:
    this rank's elements of each member, flattened.
    """

    reduction: "type[Reduction]"

    def __init__(self, members: list[nn.Parameter], group: Group = None) -> None:
        self.members, self.group = members, group
        self.sizes = [member.numel() for member in members]
        self.total = sum(self.sizes)
        self.share = -(-self.total // dist.get_world_size(group))
        self.padded = self.share * dist.get_world_size(group)
        self.owned: dict[nn.Parameter, slice] = {}
        self.own(self.share * dist.get_rank(group))

    def own(self, begin: int) -> None:
        """Make the share that begins with this element this rank's."""
        for member, size in zip(self.members, self.sizes, strict=True):
            start, stop = (min(max(end, 0), size) for end in (begin, begin + self.share))
            self.owned[member] = slice(start, stop)
            begin -= size
        self.counts = [piece.stop - piece.start for piece in self.owned.values()]

    def piece(self, member: nn.Parameter, values: torch.Tensor) -> torch.Tensor:
        """This rank's elements of a member, from values of the member's shape: a view, if these are contiguous."""
        return values.reshape(-1)[self.owned[member]]

    def pieces(self, own: torch.Tensor) -> Iterable[tuple[nn.Parameter, torch.Tensor]]:
        """Each member with its part of this rank's slice."""
        return zip(self.members, own.split(self.counts), strict=True)

    def pack(self, tensors: Mapping[nn.Parameter, torch.Tensor | None]) -> torch.Tensor:
        """The members' tensors as one, all ranks' slices in order; a missing one counts as zeros."""
        packed = self.members[0].new_zeros(self.padded)
        for part, member in zip(packed[: self.total].split(self.sizes), self.members, strict=True):
            tensor = tensors.get(member)
            if tensor is not None:
                part.view(member.shape).copy_(tensor)
        return packed

    def unpack(self, whole: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
        """Every member, from all ranks' slices in order."""
        parts = whole[: self.total].split(self.sizes)
        return {member: part.view(member.shape) for member, part in zip(self.members, parts, strict=True)}

    def reduce_scatter(self, tensors: Mapping[nn.Parameter, torch.Tensor | None]) -> "Reduction":
        """Begins to sum the members' tensors over ranks; a missing one counts as zeros."""
        return self.reduction(self, self.pack(tensors))

    def all_gather(
        self, pieces: Mapping[nn.Parameter, torch.Tensor], dtype: torch.dtype
    ) -> dict[nn.Parameter, torch.Tensor]:
        """Every member whole, from the pieces of all ranks; a missing piece counts as zeros."""
        sent = torch.zeros(self.share, dtype=dtype, device=self.members[0].device)
        for member, part in self.pieces(sent[: sum(self.counts)]):
            if member in pieces:
                part.copy_(pieces[member])
        whole = sent.new_empty(self.padded)
        if self.total:
            dist.all_gather_into_tensor(whole, sent, group=self.group)
        return self.unpack(whole)


class Reduction:
    """A reduce-scatter on its way."""

    def __init__(self, flat: Flat, sent: torch.Tensor) -> None:
        self.flat, self._sent = flat, sent  # kept until the wait
        self._work: dist.Work | None = None
        self._sum = self.begin(sent) if flat.total else sent

    def begin(self, sent: torch.Tensor) -> torch.Tensor:
        """Sends all ranks' slices; where the sum of this rank's will be."""
        own = sent.new_empty(self.flat.share)
        self._work = dist.reduce_scatter_tensor(own, sent, group=self.flat.group, async_op=True)
        return own

    def wait(self) -> torch.Tensor:
        """This rank's slice of the sum, without padding, in memory of its own."""
        if self._work is not None:
            self._work.wait()
        count = sum(self.flat.counts)
        return (
            self._sum
            if count * self._sum.itemsize == self._sum.untyped_storage().nbytes()
            else self._sum[:count].clone()
        )


Flat.reduction = Reduction
