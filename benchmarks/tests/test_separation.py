"""Faults that are composed into one class come out as defects of their own."""

import subprocess
import sys

from lockstep.benchmarks.separation import POOL, compositions_of, is_twin, touched

TWO = """
from lockstep.benchmarks.separation import checked

for defect in checked(("accumulation:NoSyncIsNotExceptionSafe", "start:FrozenNotBroadcast"), 12).defects:
    print(defect.id, defect.words())
"""

ONE = """
from lockstep.benchmarks.separation import checked

for defect in checked(("binding:DropsWhatIsTrainedAgain",), 20).defects:
    print(defect.id, defect.words())
"""


def test_two_faults_that_touch_different_things_are_two_defects() -> None:
    """In a process of its own: ranks that are simulated in a process stay behind in its torch.distributed."""
    run = subprocess.run([sys.executable, "-c", TWO], capture_output=True, text=True, timeout=300, check=False)
    told = {tuple(line.split(" ", 1)) for line in run.stdout.splitlines()}
    assert {words for _, words in told} == {"frozen parameters", "raise"}, run.stderr
    assert {name for name, _ in told} == {"D1", "D2"}


def test_what_is_frozen_at_the_start_or_later_and_trained_again_is_one_defect() -> None:
    """The class leaves out what replaces a parameter, too."""
    run = subprocess.run([sys.executable, "-c", ONE], capture_output=True, text=True, timeout=600, check=False)
    told = run.stdout.splitlines()
    again = [words for words in told if "trained again" in words]
    assert len(again) == 1, run.stderr
    assert all("replace" in words for words in told if words not in again)


def test_compositions_are_of_faults_that_write_different_things_anew() -> None:
    drawn = list(compositions_of(60, 0, lambda one, other: False))
    assert len({frozenset(names) for names in drawn}) == 60
    faults = [[name for name in names if not is_twin(name)] for names in drawn]
    assert {len(names) for names in faults} == {2, 3, 4}
    assert {is_twin(name) for names in drawn for name in names} == {True, False}
    assert drawn == list(compositions_of(60, 0, lambda one, other: False))
    for names, planted in zip(drawn, faults, strict=True):
        assert sum(len(touched(name)) for name in names) == len(set().union(*map(touched, names)))
        assert any(set(planted) <= set(pool) for pool in POOL.values())
