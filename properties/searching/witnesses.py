"""What must have taken place for a law to have shown something."""

import contextlib

from oracle.program import Scenario
from properties.law import Law
from properties.strategies.independent import sample
from properties.strategies.within import beyond
from properties.trial import TOGETHER, Trial
from properties.verdict import Refused

MORE = 6  # examples in which two ranks may come to their end


def unwitnessed(law: Law, trial: Trial) -> list[str]:
    """What must have taken place for the law to have shown something, and has not, not even in its own example.

    Raises LawBroken where the law fails on that example. Two ranks, which every law needs where there may be two, are
    looked for in a few examples more.
    """
    for witness, example in law.witnesses.items():
        scenarios = [
            each for each in (example if isinstance(example, tuple) else (example,)) if isinstance(each, Scenario)
        ]
        if not trial.witnessed[witness] and not any(beyond(trial.claims, scenario) for scenario in scenarios):
            with contextlib.suppress(Refused):
                law.check(trial, example)
    needed = [*law.witnesses, *([TOGETHER] if trial.claims.most_ranks > 1 else ())]
    if TOGETHER in needed and not trial.witnessed[TOGETHER]:
        for drawn in sample(law.draws(trial.claims), MORE):
            with contextlib.suppress(Refused):
                law.check(trial, drawn)
            if trial.witnessed[TOGETHER]:
                break
    return [witness for witness in needed if not trial.witnessed[witness]]
