"""`--impl` takes kernels as it takes data parallelism: what they have is held against them, and nothing else is."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_user_kernels_meet_the_laws_of_what_they_have() -> None:
    name = "properties/tests/user_kernels.py:SomeKernels"
    command = [sys.executable, "-m", "pytest", "properties", "--impl", name, "--world", "sim", "-q", "-p", "no:xdist"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    verdicts = dict(
        re.split(r"  +", re.sub(r"^  (P\d+) +", r"\1 ", line))
        for line in ran.stdout.splitlines()
        if line.startswith("  P")
    )
    assert verdicts["P17 pack puts every element at its place"] == "holds on one process", ran.stdout[-3000:]
    assert verdicts["P17 unpack after pack is the identity"] == "holds on one process"
    assert verdicts["P17 the norm of a list is the norm of its concatenation"] == "wrong on one process"
    assert verdicts["P17 a cast rounds to nearest even and keeps nan and infinity"] == "not claimed on one process"
    assert verdicts["P17 pack casts and scales with one rounding"] == "not claimed on one process"
    assert verdicts["P4 replicas are bitwise equal after construction and after every step"] == "not claimed"
    assert ran.returncode == 1
