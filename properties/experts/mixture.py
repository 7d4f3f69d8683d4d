"""The draw for parameters that only some ranks have: a mesh, a model of dense parameters and experts, and steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from lockstep.oracle.experts import Mesh
from lockstep.properties.data.dealing import ranks
from lockstep.properties.exercise import Exercise
from lockstep.worlds.contract import Outcome

Step = tuple[tuple[int, int], ...]  # pairs of a rank and one of its experts that gets no token
Parts = dict[str, list[int]]  # the gradients that backward leaves on a rank, by parameter name

# The values in a first step differ by a factor of at most 3, so that each one affects the norm.
_SMALLEST = 16


@dataclass(frozen=True, repr=False)
class Mixture(Exercise):
    """A training run with experts.

    - ``expert_ranks``: E of a mesh of D x E ranks.
    - ``dense``, ``experts``: the elements of each parameter.
    - ``missing``: an expert without tokens is no part of the loss; else its gradient is zero.
    - ``max_norm``: gradients are clipped to 2 ** it; None: not clipped.
    - ``loaded``: the numbers of ranks and expert ranks of a world that loads the parameters saved after ``steps``.
    - ``later``: the steps after loading.
    """

    world_size: int
    expert_ranks: int
    dense: tuple[int, ...]
    experts: tuple[int, ...]
    steps: tuple[Step, ...]
    missing: bool = False
    max_norm: int | None = None
    loaded: tuple[int, int] | None = None
    later: tuple[Step, ...] = ()

    called: ClassVar[str] = "training"

    @property
    def mesh(self) -> Mesh:
        """The mesh on which training begins."""
        return Mesh(self.world_size // self.expert_ranks, self.expert_ranks)

    @property
    def later_mesh(self) -> Mesh:
        """The mesh on which it continues."""
        assert self.loaded is not None
        size, expert_ranks = self.loaded
        return Mesh(size // expert_ranks, expert_ranks)

    @property
    def sizes(self) -> dict[str, int]:
        """The elements of each parameter of the whole model, by its name."""
        named = {f"dense.{number}": size for number, size in enumerate(self.dense)}
        return named | {f"experts.{number}": size for number, size in enumerate(self.experts)}

    def holders(self, name: str, mesh: Mesh) -> tuple[int, ...]:
        """The ranks that have a parameter."""
        kind, number = name.split(".")
        return mesh.holders(int(number), len(self.experts)) if kind == "experts" else tuple(range(mesh.world_size))

    def parts(self) -> tuple[list[list[Parts]], list[list[Parts]]]:
        """The gradients of each backward by step and rank: before saving, and after loading.

        No two numbers are equal.
        """
        numbers = count(_SMALLEST)
        later = [] if self.loaded is None else [self._parts(self.later_mesh, step, numbers) for step in self.later]
        return [self._parts(self.mesh, step, numbers) for step in self.steps], later

    def _parts(self, mesh: Mesh, idle: Step, numbers: Iterator[int]) -> list[Parts]:
        return [
            {
                name: [0 if (rank, name) in _named(idle) else next(numbers) for _ in range(size)]
                for name, size in self.sizes.items()
                if rank in self.holders(name, mesh)
            }
            for rank in range(mesh.world_size)
        ]

    def words(self) -> str:
        """The training in words: the mesh, the parameters, and experts without tokens."""
        told = [f"{_meant(self.mesh)}; parameters {', '.join(f'{name} ({size})' for name, size in self.sizes.items())}"]
        told += [_steps(self.steps, self.missing)]
        told += [f"clipped to a norm of {2.0**self.max_norm:g}"] if self.max_norm is not None else []
        told += [f"loaded on {_meant(self.later_mesh)}; {_steps(self.later, self.missing)}"] if self.loaded else []
        return "; ".join(told)

    def shown(self, outcome: Outcome) -> list[str]:
        """The gradients of each rank after each step, and the norm that it returned."""
        lines = []
        for rank, report in enumerate(outcome):
            seen: Any = report.result
            for place, got in enumerate(seen["got"] if seen is not None else ()):
                gradients = ", ".join(f"{name} {values}" for name, values in got["gradients"].items())
                norm = "" if got["norm"] is None else f"norm {got['norm']}; "
                lines.append(f"rank {rank}, step {place}: {norm}{gradients}")
        return ["The gradients of each rank:", *(f"    {line}" for line in lines)] if lines else []


def _named(idle: Step) -> set[tuple[int, str]]:
    return {(rank, f"experts.{number}") for rank, number in idle}


def _meant(mesh: Mesh) -> str:
    return f"{ranks(mesh.world_size)} ({mesh.data} data x {mesh.expert} expert)"


def _steps(steps: Sequence[Step], missing: bool) -> str:
    told = f"{len(steps)} {'step' if len(steps) == 1 else 'steps'}"
    without = "is no part of the loss of" if missing else "has no tokens on"
    idle = [
        f"in step {place} experts.{number} {without} rank {rank}"
        for place, step in enumerate(steps)
        for rank, number in step
    ]
    return "; ".join([told, *idle])
