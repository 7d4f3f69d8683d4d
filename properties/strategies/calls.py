"""Draws calls of wrappers of collectives, for P14."""

from hypothesis import strategies as st

from properties.calls import LAYOUTS, Call
from properties.claims import Claims

MOST_RANKS = 5
_RANKS = st.sampled_from((2, 3, 4, 5, 3, 5, 1))  # up to MOST_RANKS


@st.composite
def calls(draw: st.DrawFn, claims: Claims) -> Call:
    """Calls of what is offered, in any group; more ranks, odd strides and large sizes only if it must be."""
    operation = draw(st.sampled_from(claims.collectives))
    size = min(draw(_RANKS), claims.most_ranks)
    group = tuple(rank for rank in range(size) if draw(st.sampled_from((True, True, False)))) or (size - 1,)
    return Call(
        operation,
        size,
        group,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(("sum", "average"))) if operation in ("all_reduce", "reduce_scatter") else "sum",
        draw(st.sampled_from(group)) if operation == "broadcast" else 0,
        draw(st.sampled_from((2, 1, 3))),
        draw(st.sampled_from(("float32", "float64"))) if claims.float64 else "float32",
    )
