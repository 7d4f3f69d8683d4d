"""What is sent inside `no_sync` for a reason of its own is no reduction of what is accumulated there."""

import pytest

from lockstep.oracle.events import Backward, Event, Finish, SaveAndLoad, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.judging.launches import silent_inside_no_sync
from lockstep.properties.strategies.variants import without_local
from lockstep.properties.test_accumulation import followed
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import Wasteful
from lockstep.worlds.contract import World

LAW = every_law()["test_no_sync_accumulates_and_then_counts_once"]
WHOLE, LOCAL = (Backward(((0,), (0,))), Finish()), Backward(((0,), (0,)), synchronize=False)


def scenario(*program: Event) -> Scenario:
    return Scenario(2, (Parameter((1,)),), program)


DROPPED_AND_SAVED = scenario(*WHOLE, LOCAL, ZeroGrad(), SaveAndLoad(), *WHOLE)


def test_ddp_sends_the_order_of_its_buckets_in_the_forward_after_its_first_backward(sim: World) -> None:
    """Also inside `no_sync`; without that micro-batch the model is gone before."""
    ddp = trial_of("lockstep.impls.frameworks.torch_ddp:TorchDDP", sim)
    with pytest.raises(Wasteful, match="Sent"):
        silent_inside_no_sync(ddp.run(DROPPED_AND_SAVED), ddp.run(without_local(DROPPED_AND_SAVED)), "Sent.")
    LAW.check(ddp, DROPPED_AND_SAVED)


def test_what_reduces_there_is_told_where_a_forward_follows(sim: World) -> None:
    assert not followed(DROPPED_AND_SAVED)
    assert not followed(scenario(*WHOLE, LOCAL, ZeroGrad()))
    told = scenario(LOCAL, ZeroGrad(), *WHOLE, SaveAndLoad(), LOCAL, *WHOLE)
    assert followed(told)
    with pytest.raises(Wasteful, match="Something is sent inside no_sync"):
        LAW.check(trial_of("lockstep.impls.faults.accumulation:SendsInsideNoSync", sim), told)
