"""How much of a dtype a collective can carry, never less than it does, what a wider one costs, and what is claimed."""

import contextlib

import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.judging.traffic import passed
from lockstep.properties.judging.wire import as_claimed, room
from lockstep.properties.trial import Run
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import Collective

WIDE = ("float32", "float64")


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (Collective("all_reduce", "sum", "float32", 6, -1, "default"), 6),
        (Collective("all_reduce", "sum", "bfloat16", 6, -1, "default"), 0),
        (Collective("barrier", "", "", 0, -1, "default"), 0),
        (Collective("all_gather", "", "uint8", 9, -1, "default"), 2),
        (Collective("all_gather", "", "bool", 8, -1, "default"), 2),
        (Collective("all_gather", "", "float8_e4m3fn", 8, -1, "default"), 2),
        (Collective("all_gather", "", "complex64", 3, -1, "default"), 6),
        # NumPy does not know it, so it is taken for the widest.
        (Collective("all_gather", "", "bits8", 3, -1, "default"), 12),
    ],
    ids=str,
)
def test_a_collective_carries_what_its_bytes_may_hold(call: Collective, most: int) -> None:
    assert room(call, WIDE) == most


@pytest.mark.parametrize(
    ("sent", "due", "elements"),
    [
        ("float32", "float32", 12),
        ("float64", "float32", 24),
        ("float64", "float64", 12),
        ("float32", "bfloat16", 24),
        ("bfloat16", "float32", 12),  # who claims no narrower one gains nothing here
        ("uint8", "float32", 12),
    ],
)
def test_what_is_wider_than_it_is_due_costs_as_many_times_more(sent: str, due: str, elements: int) -> None:
    """Two passes of six elements, on two ranks."""
    assert passed([Collective("all_reduce", "sum", sent, 6, -1, "default")], 2, due) == elements


_N = 3
WINDOW = Scenario(2, (Parameter((_N,)),), (Backward(((0,), (0,))), Finish()))


@pytest.mark.parametrize(
    ("operation", "dtype", "count", "right"),
    [
        ("all_reduce", "bfloat16", _N, True),
        ("all_gather", "bfloat16", _N, True),
        ("all_gather", "uint8", 2 * _N, True),
        ("all_gather", "uint8", 2 * _N - 1, False),
        ("all_reduce", "bfloat16", _N - 1, False),
        ("all_reduce", "int64", _N, False),  # flags: nobody adds up bytes
        ("all_reduce", "float16", _N, False),
        ("all_gather", "float16", _N, False),
    ],
)
def test_compressed_gradients_are_exchanged_as_bytes_maybe_and_not_added_up_as_such(
    operation: str, dtype: str, count: int, right: bool
) -> None:
    """Beside what is added up in their own dtype, which is not claimed."""
    wide = Collective("all_reduce", "sum", "float32", 1, -1, "default")
    sent = (wide, Collective(operation, "sum" * (operation == "all_reduce"), dtype, count, -1, "default"))
    run = Run(WINDOW, (), (sent, sent))
    with contextlib.nullcontext() if right else pytest.raises(SilentlyWrong, match=f"At least {_N} elements must be"):
        as_claimed(run, Claims(wire_dtype="bfloat16"), "Too wide.")
