"""P1 for programs in which any three features meet."""

from lockstep.oracle.program import Scenario
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.features import features_meet
from lockstep.properties.trial import Trial


@law("P1", with_any, shown_by=features_meet, share=0.5)
def test_features_go_together_in_any_combination(trial: Trial, scenario: Scenario) -> None:
    """Programs that combine any features leave, after each event, the gradients, norms, parameters and state that the
    oracle computes.

    Why: a feature that is right alone may be wrong beside another that clears or leaves behind some state. Few programs
    have several rare features by chance.

    Broken by parameters used inside `no_sync` but not in the last micro-batch: pytorch/pytorch#69031. Broken by a
    static graph with `no_sync`: pytorch/pytorch#187732.
    """
    judge.values_equal(*trial.run_and_expect(scenario), "Where features of a program meet, what they leave is wrong.")
