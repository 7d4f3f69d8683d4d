"""Gradients of parameters that belong to some ranks: a mixture of experts on a mesh of D x E ranks.

Rank r = d E + e has the data rank d and the expert rank e. Dense parameters are on every rank. Experts 0 ... X - 1 are
dealt to the expert ranks in order, X / E to each, so that each expert is on D ranks: its group. Every rank has its own
tokens, and sends each to the rank of the same data rank that has the token's expert. So the gradient g_r that backward
leaves for an expert on rank r is already a sum over the tokens of E ranks:

    gradient  1/divisor times the sum of g_r over the parameter's group
    divisor   of a dense parameter D E; of an expert by one of `EXPERT_DIVISORS`
    world     D E, as so many ranks' tokens are in the sum (Megatron Core scales by 1 / dp_size; torchtitan calls
              `set_gradient_divide_factor` of FSDP2): the same training on every mesh
    group     D, the mean over the group's gradients (FSDP2 if nothing is set): E times as much
    norm      the root of the sum of squares over all parameters, each once, however many ranks hold it

All numbers are exact: integers go in, fractions come out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

EXPERT_DIVISORS = ("world", "group")

Vector = tuple[Fraction, ...]


@dataclass(frozen=True)
class Mesh:
    """``data`` x ``expert`` ranks. Raises ValueError for fewer than one of either."""

    data: int
    expert: int

    def __post_init__(self) -> None:
        if self.data < 1 or self.expert < 1:
            raise ValueError(f"a mesh of {self.data} x {self.expert} ranks: there is at least one of each")

    @property
    def world_size(self) -> int:
        """The number of all ranks."""
        return self.data * self.expert

    def group(self, expert_rank: int) -> tuple[int, ...]:
        """The ranks of one expert rank, in order of their data ranks."""
        return tuple(range(expert_rank, self.world_size, self.expert))

    def expert_rank(self, expert: int, experts: int) -> int:
        """The expert rank that has this one of so many experts. Raises ValueError if they cannot be dealt evenly."""
        if experts % self.expert or not 0 <= expert < experts:
            raise ValueError(f"expert {expert} of {experts} on {self.expert} expert ranks: each has as many")
        return expert // (experts // self.expert)

    def holders(self, expert: int, experts: int) -> tuple[int, ...]:
        """The ranks that have an expert."""
        return self.group(self.expert_rank(expert, experts))


def divisor(mesh: Mesh, policy: str) -> int:
    """The divisor of an expert's summed gradient. Raises ValueError for an unknown policy."""
    if policy not in EXPERT_DIVISORS:
        raise ValueError(f"policy {policy!r}: there are {', '.join(EXPERT_DIVISORS)}")
    return mesh.world_size if policy == "world" else mesh.data


def gradient(parts: Iterable[Sequence[int]], divided_by: int) -> Vector:
    """The gradient of one parameter: its parts from each rank of its group, added and divided."""
    return tuple(Fraction(sum(column), divided_by) for column in zip(*parts, strict=True))


def squared_norm(gradients: Iterable[Vector]) -> Fraction:
    """The square of the norm of a whole gradient, given one gradient of each parameter."""
    return sum((element * element for vector in gradients for element in vector), Fraction(0))
