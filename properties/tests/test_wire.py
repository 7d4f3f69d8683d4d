"""How much of a dtype a collective can carry: never less than it does, whatever was sent."""

import pytest

from properties.judging.wire import room
from worlds.contract import Collective

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
