"""Ranks that differ after construction and are equal from the first forward on."""

from collections import Counter
from dataclasses import replace

from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.lattice import Inexact
from lockstep.properties.claims import EQUAL_FROM
from lockstep.properties.judging import judge
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused


def starts_later(trial: Trial, broken: LawBroken) -> bool:
    """True if the parameters are wrong after construction, but everything is right from the first forward on."""
    of, scenario, difference = trial.implementation, broken.scenario, broken.difference
    apart = difference is not None and (difference.place, difference.quantity) == (-1, "parameter")
    if not apart or (of.claims.stage, of.claims.equal_from) != (None, EQUAL_FROM[0]):
        return False
    claiming = replace(of, claims=replace(of.claims, equal_from=EQUAL_FROM[1]))
    tried = replace(trial, implementation=claiming, witnessed=Counter())
    if beyond(tried.claims, scenario):
        return False
    try:
        judge.values_equal(*tried.run_and_expect(scenario), "")
    except (LawBroken, Refused, Inexact, UnsatisfiedAssumption):
        return False
    return True
