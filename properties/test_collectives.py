"""P5: ranks that talk to each other say the same things in the same order."""

from oracle.program import Backward, Finish, Parameter, Scenario
from properties import judge
from properties.law import law
from properties.strategies import exact_scenarios
from properties.trial import Trial

SMALLEST = Scenario(2, (Parameter((1,)),), (Backward(((0,), (0,))), Finish()))


@law("P5", exact_scenarios, witnesses={"ranks communicated": SMALLEST})
def test_every_rank_issues_the_same_collectives(trial: Trial, scenario: Scenario) -> None:
    """Operation, reduction, dtype, element count, root and group agree, collective by collective, on all ranks.

    Why: collectives pair up by position. Where the sequence depends on what a rank happens to compute, peers wait for
    ever, crash, or add up different things: KellerJordan/Muon#37, microsoft/DeepSpeed#291, NVIDIA/Megatron-LM#2218.
    """
    judge.same_collectives(trial.run(scenario), "Ranks issue different collectives.")
