"""Witnesses: events that must have taken place for a law to have shown something."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.law import Law
from lockstep.properties.strategies.independent import sample
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import TOGETHER, Trial
from lockstep.properties.verdict import Refused

MORE = 6  # further examples in which a missing event may take place


def unwitnessed(law: Law, trial: Trial) -> list[str]:
    """The witnesses of the law that are missing even after its own examples and a few more have run.

    Its own examples may need more than is claimed, hence the further ones. Every law needs two ranks, if there may be
    two. Raises LawBroken if the law fails on one of these examples.
    """
    for witness, example in law.witnesses.items():
        example = in_its_dtype(trial.claims, example)
        if not trial.witnessed[witness] and is_claimed(trial.claims, example):
            _check(law, trial, example)
    needed = [*law.witnesses, *([TOGETHER] if trial.claims.most_ranks > 1 else ())]
    if missing(trial, needed):
        for drawn in sample(law.draws(trial.claims), MORE):
            _check(law, trial, drawn)
            if not missing(trial, needed):
                break
    return missing(trial, needed)


def _check(law: Law, trial: Trial, example: Any) -> None:
    """Check the law on an example, unless the example is set aside."""
    with contextlib.suppress(Refused, UnsatisfiedAssumption):
        if trial.aside is not None:
            trial.aside(example)
        law.check(trial, example)


def in_its_dtype(claims: Claims, example: Any) -> Any:
    """A law's own example with gradients that fit the dtype on the wire.

    It may be a tuple of a program and other values.
    """
    if isinstance(example, tuple):
        return tuple(in_its_dtype(claims, each) for each in example)
    return replace(example, wire=claims.wire_dtype or "") if isinstance(example, Scenario) else example


def missing(trial: Trial, needed: Sequence[str]) -> list[str]:
    """The witnesses that have never taken place."""
    return [witness for witness in needed if not trial.witnessed[witness]]


def is_claimed(claims: Claims, example: Any) -> bool:
    """True if a law's own example stays within the claims. It may be a tuple of a program and other values."""
    for each in example if isinstance(example, tuple) else (example,):
        if isinstance(each, Scenario) and beyond(claims, each):
            return False
        if getattr(each, "world_size", 1) > claims.most_ranks:  # a run of a real model has this field too
            return False
    return True
