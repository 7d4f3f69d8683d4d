"""The tables of figures can be made. What stands in them is the machine's."""

import os
import subprocess
import sys

import pytest

from lockstep.benchmarks import shares, start, worlds

COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lockstep.benchmarks.kernels import _copy_one

types = {"source": "*fp32", "target": "*fp32", "count": "i32", "BLOCK": "constexpr"}
print(compile(ASTSource(_copy_one, types, {(3,): 1024}), target=GPUTarget("cuda", 90, 32)).asm["ptx"])
"""


def test_the_table_of_worlds_has_a_positive_ratio_for_each_pair_of_contestants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worlds, "IMPLEMENTATIONS", worlds.IMPLEMENTATIONS[1:])  # which runs on every world there is
    heading, columns, *table = worlds.lines(rounds=1, world_sizes=(2,))
    assert heading.startswith("An example on the simulated world and elsewhere, medians of 1 rounds")
    assert columns.split()[3:] == [f"{one}/{other}" for one, other in worlds.RATIOS]
    for implementation, line in zip(worlds.IMPLEMENTATIONS, table, strict=False):
        name, ranks, sim, _, inside, _, *ratios = line.split()
        assert (name, ranks) == (implementation.rpartition(":")[2], "2")
        assert float(sim) > 0
        assert float(inside) > 0
        assert len(ratios) == len(worlds.RATIOS)
        assert all(float(ratio) > 0 for ratio in ratios)


def test_every_part_of_a_laws_examples_takes_some_of_their_time() -> None:
    """A part of none is one that the law no longer comes through."""
    examples, seconds = shares.measure(examples=20)
    assert examples > 0
    assert seconds.keys() == {"drawing", "proof", "oracle", "world", "judging"}
    assert all(each > 0 for each in seconds.values()), seconds


def test_what_a_user_waits_for_comes_to_an_end() -> None:
    heading, *table = start.lines(rounds=1)
    assert heading == "Until something happens, medians of 1 rounds:"
    table += [*start.of_published(rounds=1, shapes=("one argument",))][1:]
    assert [float(line.split("s, ")[1].split()[0]) > 0 for line in table] == [True, True, True]


def test_the_kernel_of_a_peer_compiles_for_a_gpu_on_a_machine_without_one() -> None:
    """The interpreter would let pass what the compiler refuses."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    ran = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "st.global" in ran.stdout
