"""The draw for a training loop: the tokens that count in each sample, by window, rank and micro-batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from lockstep.properties.data.dealing import ranks
from lockstep.properties.exercise import Exercise
from lockstep.worlds.contract import Outcome

MicroBatch = tuple[int, ...]  # the number of tokens that count in each sample
Window = tuple[tuple[MicroBatch, ...], ...]  # the micro-batches of each rank


@dataclass(frozen=True, repr=False)
class Training(Exercise):
    """A training run.

    ``windows``: one for each optimizer step. ``max_norm``: gradients are clipped to 2 ** it; None: not clipped.
    ``overflow``: the window in which a token of the last rank is infinite; -1: none.
    """

    world_size: int
    windows: tuple[Window, ...]
    max_norm: int | None = None
    overflow: int = -1

    called: ClassVar[str] = "training"

    @property
    def accumulate(self) -> int:
        """The number of micro-batches in a full window."""
        return len(self.windows[0][0])

    def values(self) -> list[list[list[list[list[int]]]]]:
        """The value of each token that counts, by window, rank, micro-batch and sample. No two are equal."""
        numbers: Iterator[int] = iter(range(1, 10**6))
        return [
            [[[[next(numbers) for _ in range(tokens)] for tokens in batch] for batch in rank] for rank in window]
            for window in self.windows
        ]

    def words(self) -> str:
        """The training in words: the tokens that count in each window."""
        told = []
        for place, window in enumerate(self.windows):
            shares = [
                f"rank {rank}: {', '.join('+'.join(map(str, batch)) for batch in batches)}"
                for rank, batches in enumerate(window)
            ]
            told.append(f"window {place} has the tokens {'; '.join(shares)}")
        told += [f"clipped to a norm of {2.0**self.max_norm:g}"] if self.max_norm is not None else []
        told += [f"gradients overflow in window {self.overflow}"] if self.overflow >= 0 else []
        return f"{ranks(self.world_size)}: {'; '.join(told)}"

    def shown(self, outcome: Outcome) -> list[str]:
        """The reports of each rank, and its weights after each window."""
        lines = []
        for rank, report in enumerate(outcome):
            seen: Any = report.result
            for place, got in enumerate(seen["got"] if seen is not None else ()):
                weights = ", ".join(map(str, got["weights"]))
                reported = f"loss {got['loss']}, norm {got['norm']}, learning rate {got['rate']}"
                lines.append(f"rank {rank}, window {place}: {reported}; then weights {weights}")
        return ["What each rank reported:", *(f"    {line}" for line in lines)] if lines else []
