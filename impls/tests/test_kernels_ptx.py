"""What results cannot show on a CPU, read in the PTX that each kernel compiles to: sm_90, without a GPU."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
AVERAGES = {"unpack bfloat16 to float32, averaged", "unpack float32 to bfloat16, averaged"}
DIVIDES = AVERAGES | {"scale float32", "scale bfloat16", "whole norm", "adamw"}
ROOTS = {"whole norm", "adamw"}
FUSES = {"partial norms float32", "partial norms bfloat16", "whole norm"}
REDUCES = {"partial norms float32", "partial norms bfloat16", "whole norm"}
FEW = {"whole norm", "cut"}  # their arrays are a few bytes for every 8 kilobytes of data
# A thread may have at most so many registers where 16 programs of 4 warps are to be on a multiprocessor, or 8.
FULL, HALF = 32, 64
MOST = dict.fromkeys(["scale float32", "pack mixed"], 40) | dict.fromkeys(
    ["pack strided", "adamw", "scale bfloat16", "partial norms bfloat16", "unpack float32 to bfloat16, averaged"], HALF
)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """By name, the PTX of every kernel, and how many programs many lengths compiled to."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", "lockstep.impls.tests.compile_only"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def counts(ptx: str) -> Counter[str]:
    """How often each instruction occurs, predicates aside."""
    lines = (re.sub(r"^@!?%p\d+\s+", "", line.strip()) for line in ptx.splitlines())
    return Counter(line.split()[0].rstrip(";") for line in lines if re.match(r"[a-z]\w*[.\s]", line))


def shipped(compiled: dict[str, Any]) -> dict[str, Counter[str]]:
    return {name: counts(found["ptx"]) for name, found in compiled.items() if not name.startswith(("fault", "a thou"))}


def test_every_kernel_is_among_those_compiled(compiled: dict[str, Any]) -> None:
    assert len(shipped(compiled)) == 16


def test_division_is_correctly_rounded_where_there_is_any(compiled: dict[str, Any]) -> None:
    for name, found in shipped(compiled).items():
        assert found["div.rn.f32"] > 0 if name in DIVIDES else found["div.rn.f32"] == 0, name
        assert not any(op.startswith(("div.full", "div.approx", "rcp")) for op in found), name


def test_a_plain_slash_would_be_seen(compiled: dict[str, Any]) -> None:
    assert counts(compiled["fault: divide"]["ptx"])["div.full.f32"] > 0


def test_square_roots_are_correctly_rounded(compiled: dict[str, Any]) -> None:
    for name, found in shipped(compiled).items():
        assert found["sqrt.rn.f32"] > 0 if name in ROOTS else found["sqrt.rn.f32"] == 0, name
        assert not any(op.startswith(("sqrt.approx", "rsqrt")) for op in found), name


def test_nothing_flushes_subnormals(compiled: dict[str, Any]) -> None:
    for name, found in shipped(compiled).items():
        assert not any(".ftz" in op for op in found), name


def test_products_are_fused_into_sums_in_norms_and_nowhere_else(compiled: dict[str, Any]) -> None:
    for name, found in shipped(compiled).items():
        assert found["fma.rn.f32"] > 0 if name in FUSES else found["fma.rn.f32"] == 0, name
    assert counts(compiled["adamw"]["ptx"])["mul.rn.f32"] > 0


def test_aligned_pieces_are_read_and_written_16_bytes_at_a_time(compiled: dict[str, Any]) -> None:
    for name in shipped(compiled).keys() - FEW:
        found = counts(compiled[name]["ptx"])
        # What is widened is loaded 8 bytes at a time, and stored 16.
        assert found["ld.global.v4.b32"] > 0 or (name in AVERAGES and found["ld.global.v2.b32"] > 0), name
        assert found["st.global.v4.b32"] > 0 or name in REDUCES, name


def test_a_thread_of_a_float32_piece_has_four_vectors_in_flight(compiled: dict[str, Any]) -> None:
    for name in ("pack float32", "pack bfloat16", "unpack float32", "scale float32", "scale bfloat16"):
        ptx = compiled[name]["ptx"]
        assert re.search(r"(ld\.global\.v4(?:(?!st\.global).)*){4}", ptx, re.DOTALL), name


def test_no_thread_has_memory_of_its_own(compiled: dict[str, Any]) -> None:
    for name in shipped(compiled):
        assert compiled[name]["stack"] == compiled[name]["spilled"] == 0, name
        assert ".local" not in compiled[name]["ptx"], name


def test_what_is_spilled_would_be_seen(compiled: dict[str, Any]) -> None:
    assert compiled["fault: registers"]["spilled"] > 0


def test_no_element_goes_through_shared_memory(compiled: dict[str, Any]) -> None:
    for name, found in shipped(compiled).items():
        stores = sum(number for op, number in found.items() if op.startswith("st.shared"))
        assert stores > 0 if name in REDUCES else stores == 0, name


def test_registers_leave_room_for_enough_programs_on_a_multiprocessor(compiled: dict[str, Any]) -> None:
    for name in shipped(compiled).keys() - FEW:
        assert compiled[name]["registers"] <= MOST.get(name, FULL), (name, compiled[name]["registers"])


def test_unaligned_addresses_and_the_ends_of_tensors_have_narrow_loads(compiled: dict[str, Any]) -> None:
    for name in shipped(compiled).keys() - {"cut"}:
        found = counts(compiled[name]["ptx"])
        assert found["ld.global.b32"] + found["ld.global.b16"] > 0, name


def narrowed(ptx: str) -> bool:
    """True if a product of 64 bits is cut to 32."""
    return bool(re.search(r"mul\.lo\.s64\s+(%rd\d+), [^;]*;\s+cvt\.s64\.s32\s+%rd\d+, \1;", ptx))


def test_a_pieces_first_element_is_computed_in_64_bits(compiled: dict[str, Any]) -> None:
    """A piece's number in its tensor times its elements, when the table is cut; the other kernels add it to nothing."""
    assert counts(compiled["cut"]["ptx"])["mul.lo.s64"] > 0
    assert not narrowed(compiled["cut"]["ptx"])
    for name in ("sgd", "adamw"):
        first = r"mul\.wide\.u32\s+%rd\d+, %r\d+, 1024;|shl\.b64\s+%rd\d+, %rd\d+, 10;"
        assert re.search(first, compiled[name]["ptx"]), name


def test_an_index_of_32_bits_would_be_seen(compiled: dict[str, Any]) -> None:
    assert narrowed(compiled["fault: index of 32 bits"]["ptx"])


def test_one_program_serves_all_lengths(compiled: dict[str, Any]) -> None:
    for name in shipped(compiled):
        assert compiled[name]["programs"] == 1, name


def test_a_program_for_every_length_would_be_seen(compiled: dict[str, Any]) -> None:
    assert compiled["fault: length"]["programs"] == 20


def test_a_thousand_tensors_take_one_launch_or_three_and_one_more_where_there_is_no_table(
    compiled: dict[str, Any],
) -> None:
    def launches(name: str) -> list[str]:
        found: list[str] = compiled[f"a thousand: {name}"]["launches"]
        return found

    assert launches("pack, table kept") == launches("unpack, table kept") == ["_rewrite"]
    assert launches("pack") == launches("pack, other addresses") == ["_cut", "_rewrite"]
    assert launches("average and clip, table kept") == ["_partial_norms", "_whole_norm", "_rewrite"]


def test_a_second_launch_goes_past_triton_with_every_argument(compiled: dict[str, Any]) -> None:
    again = compiled["a thousand: launched again"]
    assert again["looked"] == ["_cut", "_rewrite", "_sgd"]
    assert again["grids"] == [[3, 1, 1], [5, 1, 1]]
    assert again["arguments"] == again["wanted"]
    assert again["missing"] == []
