"""Synchronizers that are wrong about sparse gradients alone, such as those of embeddings (P1)."""

import torch
import torch.distributed as dist

from lockstep.impls.twins.sparse import AddsUpRows

ROWS = ("test_sparse_gradients_are_averaged_row_by_row",)


class AddsUpWhatIsSparse(AddsUpRows):
    """Divides what it sends in buckets."""

    known_fault = "sparse gradients are added up and never divided"
    source = "A10 V https://github.com/horovod/horovod/pull/2279"
    killed_by = ROWS

    def mean_of_rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """The sum."""
        dist.all_reduce(gradient, group=self.group)
        return gradient


class PairsRowsByPlace(AddsUpRows):
    """All-reduces the values, which are dense, as far as all ranks have some."""

    known_fault = "rows are added to whichever rows stand in their places on other ranks"
    source = "recipe: a sparse gradient that is taken for its values"
    killed_by = ROWS

    def mean_of_rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """Of so many rows as the table has, of which those that are not there are zero."""
        values = gradient.values().new_zeros(gradient.shape)
        values[: len(gradient.values())] = gradient.values()
        dist.all_reduce(values, group=self.group)
        values /= dist.get_world_size(self.group)
        return torch.sparse_coo_tensor(gradient.indices(), values[: len(gradient.values())], gradient.shape)


class KeepsTheLastOfARow(AddsUpRows):
    """Writes rows into a table."""

    known_fault = "of a row that was looked up twice one gradient is kept"
    source = "recipe: an index that is assigned to, and not added to"
    killed_by = ROWS

    def mean(self, gradient: torch.Tensor) -> torch.Tensor:
        """The mean of tables."""
        if gradient.is_sparse:
            table = gradient.new_zeros(gradient.shape).to_dense()
            table[gradient._indices()[0]] = gradient._values()
            gradient = table
        return super().mean(gradient)


class DividesByWhoHasARow(AddsUpRows):
    """Takes the mean of what is there."""

    known_fault = "a row is divided by the number of ranks that have looked it up"
    source = "recipe: zeros that nobody sends, and nobody counts"
    killed_by = ROWS

    def mean_of_rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """By row."""
        ones = torch.ones_like(gradient.values())
        counts = torch.sparse_coo_tensor(gradient.indices(), ones, gradient.shape)
        dist.all_reduce(counts, group=self.group)
        dist.all_reduce(gradient, group=self.group)
        means = gradient.coalesce().values() / counts.coalesce().values()
        return torch.sparse_coo_tensor(gradient.coalesce().indices(), means, gradient.shape)
