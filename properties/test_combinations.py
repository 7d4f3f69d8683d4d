"""P1 where any three things that a program can have meet."""

from lockstep.oracle.program import Scenario
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.trial import Trial


@law("P1", with_any)
def test_features_go_together_in_any_combination(trial: Trial, scenario: Scenario) -> None:
    """Whatever a program combines, gradients, norms, parameters and state are after each event what the oracle says.

    Why: what is right alone may be wrong beside something else, where one clears or leaves behind what the other relies
    on, and few programs have several rare things by chance. Broken by parameters that are used inside no_sync and not
    in the last micro-batch: pytorch/pytorch#69031; by a static graph and no_sync: pytorch/pytorch#187732.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Where features of a program meet, what they leave is wrong.")
