"""Faults that are composed into one class come out as defects of their own."""

import subprocess
import sys

from lockstep.benchmarks.separation import POOL, compositions_of, touched

TWO = """
from lockstep.benchmarks.separation import checked

for defect in checked(("accumulation:NoSyncIsNotExceptionSafe", "start:FrozenNotBroadcast"), 12).defects:
    print(defect.id, defect.words())
"""


def test_two_faults_that_touch_different_things_are_two_defects() -> None:
    """In a process of its own: ranks that are simulated in a process stay behind in its torch.distributed."""
    run = subprocess.run([sys.executable, "-c", TWO], capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout.splitlines() == ["D1 frozen parameters", "D2 raise"], run.stderr


def test_compositions_are_of_faults_that_write_different_things_anew() -> None:
    drawn = list(compositions_of(60, 0, lambda one, other: False))
    assert len({frozenset(names) for names in drawn}) == 60
    assert {len(names) for names in drawn} == {2, 3, 4}
    assert drawn == list(compositions_of(60, 0, lambda one, other: False))
    for names in drawn:
        assert sum(len(touched(name)) for name in names) == len(set().union(*map(touched, names)))
        assert any(set(names) <= set(pool) for pool in POOL.values())
