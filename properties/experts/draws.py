"""Draw meshes, models and steps within the claims. They shrink to 1 x 2 ranks, two experts, one step."""

from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.experts import Mesh
from lockstep.properties.claims import Claims
from lockstep.properties.experts.mixture import Mixture, Step

# Data ranks x expert ranks. They are powers of two, so that a mean is exact in any order.
_MESHES = tuple(Mesh(*shape) for shape in ((1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (1, 1)))
_NORMS = (0, 3, 12)  # no gradient reaches the last one
_SIZES = st.integers(1, 2)


def _meshes(claims: Claims) -> st.SearchStrategy[Mesh]:
    return st.sampled_from([mesh for mesh in _MESHES if mesh.world_size <= claims.most_ranks])


@st.composite
def _steps(draw: st.DrawFn, mesh: Mesh, experts: int, most: int) -> tuple[Step, ...]:
    """At least one step. In each one, some experts have no tokens on some of their ranks."""
    held = [(rank, expert) for expert in range(experts) for rank in mesh.holders(expert, experts)]
    idle = st.lists(st.sampled_from(held), max_size=3, unique=True).map(sorted).map(tuple)
    return tuple(draw(st.lists(idle, min_size=1, max_size=most)))


@st.composite
def mixtures(draw: st.DrawFn, claims: Claims, most: int = 3) -> Mixture:
    """Training on one mesh."""
    mesh = draw(_meshes(claims))
    experts = mesh.expert * draw(st.integers(1, 2))
    dense = draw(st.lists(_SIZES, min_size=1, max_size=2))
    sizes = draw(st.lists(_SIZES, min_size=experts, max_size=experts))
    steps = draw(_steps(mesh, experts, most))
    missing = claims.unused is not None and any(steps) and draw(st.booleans())
    return Mixture(mesh.world_size, mesh.expert, tuple(dense), tuple(sizes), steps, missing)


@st.composite
def clipped(draw: st.DrawFn, claims: Claims) -> Mixture:
    """One step, clipped to some norm, possibly one that it never reaches."""
    return replace(draw(mixtures(claims, most=1)), max_norm=draw(st.sampled_from(_NORMS)))


@st.composite
def saved(draw: st.DrawFn, claims: Claims) -> Mixture:
    """Training that is saved on one mesh and continues on another one that can hold its experts."""
    mixture = draw(mixtures(claims, most=2))
    experts = len(mixture.experts)
    mesh = draw(_meshes(claims).filter(lambda mesh: experts % mesh.expert == 0))
    later = draw(_steps(mesh, experts, 2))
    return replace(mixture, loaded=(mesh.world_size, mesh.expert), later=later)
