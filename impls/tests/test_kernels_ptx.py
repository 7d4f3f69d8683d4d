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
DIVIDES = {"unpack bfloat16 to float32, averaged", "scale float32", "scale bfloat16", "whole norm", "adamw"}
ROOTS = {"whole norm", "adamw"}
FUSES = {"partial norms float32", "partial norms bfloat16", "whole norm"}
READS_ONLY = {"partial norms float32", "partial norms bfloat16", "whole norm"}


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
    assert len(shipped(compiled)) == 12


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


def test_aligned_blocks_are_read_and_written_16_bytes_at_a_time(compiled: dict[str, Any]) -> None:
    for name, found in shipped(compiled).items():
        if name != "whole norm":  # its arrays are a few bytes for every 32 kilobytes of data
            assert found["ld.global.v4.b32"] > 0, name
            assert found["st.global.v4.b32"] > 0 or name in READS_ONLY, name


def test_unaligned_addresses_and_the_ends_of_tensors_have_narrow_loads(compiled: dict[str, Any]) -> None:
    for name, found in shipped(compiled).items():
        assert found["ld.global.b32"] + found["ld.global.b16"] > 0, name


def test_the_first_element_of_a_block_is_computed_in_64_bits(compiled: dict[str, Any]) -> None:
    for name in shipped(compiled).keys() - {"whole norm"}:
        ptx = compiled[name]["ptx"]
        assert re.search(r"shl\.b64\s+%rd\d+, %rd\d+, 13;|mul\.wide\.u32\s+%rd\d+, %r\d+, 4096;", ptx), name
        assert not re.search(r"setp\.l[te]\.s32\s+%p\d+, %r\d+, (8192|4096);", ptx), name


def test_an_index_of_32_bits_would_be_seen(compiled: dict[str, Any]) -> None:
    ptx = compiled["fault: index of 32 bits"]["ptx"]
    assert not re.search(r"shl\.b64\s+%rd\d+, %rd\d+, 13;", ptx)
    assert re.search(r"setp\.lt\.s32\s+%p\d+, %r\d+, 8192;", ptx)


def test_one_program_serves_all_lengths(compiled: dict[str, Any]) -> None:
    for name in shipped(compiled):
        assert compiled[name]["programs"] == 1, name


def test_a_program_for_every_length_would_be_seen(compiled: dict[str, Any]) -> None:
    assert compiled["fault: length"]["programs"] == 20


def test_a_thousand_tensors_take_one_launch_or_three(compiled: dict[str, Any]) -> None:
    assert compiled["a thousand: pack"]["launches"] == ["_transfer"]
    assert compiled["a thousand: unpack"]["launches"] == ["_transfer"]
    assert compiled["a thousand: average and clip"]["launches"] == ["_partial_norms", "_whole_norm", "_scale"]
