"""Faults that are composed into one class come out as defects of their own."""

from lockstep.benchmarks.separation import POOL, checked, compositions_of, touched


def test_two_faults_that_touch_different_things_are_two_defects() -> None:
    found = checked(("accumulation:NoSyncIsNotExceptionSafe", "start:FrozenNotBroadcast"), 12).defects
    assert [(defect.id, defect.words()) for defect in found] == [("D1", "frozen parameters"), ("D2", "raise")]


def test_compositions_are_of_faults_that_write_different_things_anew() -> None:
    drawn = list(compositions_of(60, 0, lambda one, other: False))
    assert len({frozenset(names) for names in drawn}) == 60
    assert {len(names) for names in drawn} == {2, 3, 4}
    assert drawn == list(compositions_of(60, 0, lambda one, other: False))
    for names in drawn:
        assert sum(len(touched(name)) for name in names) == len(set().union(*map(touched, names)))
        assert any(set(names) <= set(pool) for pool in POOL.values())
