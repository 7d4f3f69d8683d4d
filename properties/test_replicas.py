"""P4: ranks stay exact replicas."""

from lockstep.oracle.program import Scenario
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.features import anything
from lockstep.properties.trial import Trial


@law("P4", exact_scenarios, shown_by=anything, share=0.3)
def test_replicas_are_bitwise_equal_after_construction_and_after_every_step(trial: Trial, scenario: Scenario) -> None:
    """Every rank holds, bit for bit, rank 0's parameters, frozen ones too, and optimizer state. Before the first step
    this holds from construction on, or from the first forward on, as claimed.

    Why: nothing makes replicas equal again once they differ. Ranks begin with different values, so a missing or partial
    broadcast shows at once.

    Broken by leaving frozen parameters out of the broadcast: speechbrain/speechbrain#2814. Broken by ranks that do not
    get the mean: pytorch/pytorch#158719.
    """
    judge.replicas_equal(trial.run(scenario), "Replicas differ.")
