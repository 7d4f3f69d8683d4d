"""Draws calls of wrappers of collectives, for P14."""

from hypothesis import strategies as st

from lockstep.properties.claims import Claims
from lockstep.properties.wrapper_call import LAYOUTS, MOST_RANKS, Call

_RANKS = st.sampled_from((2, 3, 4, 5, 3, 5, 1))  # up to MOST_RANKS


@st.composite
def calls(draw: st.DrawFn, claims: Claims, integers: bool = False) -> Call:
    """Calls of the claimed collectives, in any group. They shrink to few ranks, contiguous strides and small sizes."""
    operation = draw(st.sampled_from(claims.collectives))
    size = min(draw(_RANKS), claims.most_ranks)
    group = tuple(rank for rank in range(size) if draw(st.sampled_from((True, True, False)))) or (size - 1,)
    has_none = claims.scalars and operation in ("all_reduce", "broadcast")  # the other operations change the shape
    # Everything is drawn even if it has no effect, so that a failure shrinks to the plainest call.
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    none = draw(st.sampled_from(("", "", "", *["columns", "rows"] * claims.empty_parameters)))
    layout, reduction = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(("sum", "average")))
    root = group[draw(st.integers(0, MOST_RANKS - 1)) % len(group)]
    dimensions = draw(st.sampled_from((2, 1, 3, *[0] * has_none)))
    dtype = draw(st.sampled_from(dtypes(claims, integers)))
    # The average of integers is not well-defined.
    reduces = operation in ("all_reduce", "reduce_scatter") and dtype != "int64"
    return Call(
        operation,
        size,
        group,
        0 if none == "rows" else rows,
        0 if none == "columns" else columns,
        layout if dimensions else LAYOUTS[0],
        reduction if reduces else "sum",
        root if operation == "broadcast" else 0,
        dimensions,
        dtype,
    )


def dtypes(claims: Claims, integers: bool) -> list[str]:
    """The claimed dtypes, the plainest first."""
    chosen = {"float64": claims.float64, "bfloat16": claims.sixteen_bits, "float16": claims.sixteen_bits}
    return ["float32", *(name for name, may in {**chosen, "int64": integers}.items() if may)]


def calls_of_any(claims: Claims) -> st.SearchStrategy[Call]:
    """As `calls`, with integers if they are claimed. They are allowed here because no backward pass is run."""
    return calls(claims, claims.integers)
