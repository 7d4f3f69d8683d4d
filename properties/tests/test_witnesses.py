"""No law passes vacuously on what ships: what it needs to have taken place does take place in its own example."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis.errors import UnsatisfiedAssumption

from lockstep.oracle.events import Backward, Finish, Step
from lockstep.oracle.model import Hyperparameters, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_fault, every_law
from lockstep.properties.implementations import CORRECT, OPTIONS, Implementation, described, look_up
from lockstep.properties.law import Law, concerns
from lockstep.properties.ranks import description
from lockstep.properties.searching.search import how_broken, search
from lockstep.properties.searching.witnesses import in_its_dtype, is_claimed, unwitnessed
from lockstep.properties.tests.idle import ONLY_BEGINS
from lockstep.properties.tests.trials import NIGHTLY, trial_of
from lockstep.properties.trial import ENDED, SENT, TOGETHER, Trial
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import World

LAWS = every_law().values()
CLAIMS = {name: described(name, description.describe(name)).claims for name in CORRECT}


@pytest.mark.parametrize("name", CORRECT)
def test_every_law_shows_something_on_correct_implementations(sim: World, name: str) -> None:
    """A nightly run tries a law on all whom it concerns, a short one on a third, or one, of them."""
    (implementation,) = look_up([name], sim)
    for number, law in enumerate(LAWS):
        concerned = [other for other, claims in CLAIMS.items() if concerns(law, claims)]
        if name in (concerned if NIGHTLY else concerned[number % 3 :: 3] or concerned[:1]):
            assert unwitnessed(law, Trial(implementation, sim)) == []


@pytest.mark.parametrize("name", OPTIONS)
def test_other_options_of_the_same_packages_keep_laws_too(name: str, sim: World) -> None:
    """A nightly run tries all laws on each, with as many examples as anything else; this one some, in turns."""
    (implementation,) = look_up([name], sim)
    concerned = [law for law in LAWS if concerns(law, implementation.claims)]
    for law in concerned if NIGHTLY else concerned[OPTIONS.index(name) :: len(OPTIONS)]:
        under_test = Trial(implementation, sim)
        assert search(law, under_test, 4, seed_value=0).failures == [], law.name
        assert under_test.witnessed[ENDED], law.name


@pytest.mark.parametrize("law", [law for law in LAWS if SENT in law.witnesses], ids=lambda law: law.name)
def test_broadcasts_of_construction_are_no_witness_for_what_is_sent_later(sim: World, law: Law) -> None:
    fault = next(name for name, fault in every_fault().items() if law.name in fault.killed_by)
    claims = described(fault, description.describe(fault)).claims
    trial = Trial(Implementation(ONLY_BEGINS, claims), sim)
    with contextlib.suppress(LawBroken):
        unwitnessed(law, trial)
    assert trial.witnessed[ENDED]
    assert not trial.witnessed[SENT]


@pytest.mark.parametrize("law", [law for law in LAWS if law.witnesses], ids=lambda law: law.name)
def test_no_laws_own_example_runs_on_more_ranks_than_there_are(law: Law) -> None:
    """As on a machine of one GPU: each has several, and nothing else that code under this law does not claim."""
    fault = next(name for name, fault in every_fault().items() if law.name in fault.killed_by)
    claims = described(fault, description.describe(fault)).claims
    examples = [in_its_dtype(claims, example) for example in law.witnesses.values()]
    assert all(is_claimed(claims, example) for example in examples)
    assert not any(is_claimed(replace(claims, most_ranks=1), example) for example in examples)


def test_what_a_law_cannot_show_by_its_own_examples_is_looked_for_in_a_few_more(sim: World) -> None:
    """Its own example of a copy accumulates, which is not claimed; the others need not run again."""
    law = every_law()["test_a_gradient_that_the_caller_replaces_counts_as_its_copy_does"]
    trial = trial_of("lockstep.impls.naive:NaiveDataParallel", sim)
    trial.witnessed.update((SENT, ENDED, TOGETHER))
    assert unwitnessed(law, trial) == []


@pytest.mark.parametrize("name", ["EvaluatesACopy", "KeepsItsFirstEvaluation"])
def test_an_evaluation_that_cannot_be_looked_into_shows_nothing_and_fails_nothing(sim: World, name: str) -> None:
    """Not even where that before the first step can."""
    law = every_law()["test_an_evaluation_reads_what_the_last_step_has_left"]
    name = f"lockstep.properties.tests.user_code:{name}"
    trial = trial_of(name, sim)
    assert search(law, trial, 20, seed_value=0).failures == []
    assert unwitnessed(law, trial) == ["an evaluation after a step was seen to read parameters"]


def test_a_step_of_which_the_oracle_cannot_tell_is_no_error_where_nobody_searches(sim: World) -> None:
    """Of AdamW without a learning rate some form divides by zero, so that nothing encloses all of them."""
    law = every_law()["test_gradients_equal_the_mean_over_ranks"]
    of_any_form = replace(CLAIMS["lockstep.impls.zero1:Zero1"], same_bits=False)
    trial = Trial(Implementation("lockstep.impls.zero1:Zero1", of_any_form), sim)
    still = Hyperparameters(learning_rate=0.0)
    program = (Backward(((0,), (0,))), Finish(), Step())
    scenario = Scenario(2, (Parameter((1,)),), program, optimizer="AdamW", hyperparameters=still)
    with pytest.raises(UnsatisfiedAssumption, match="divisor"):
        law.check(trial, scenario)
    assert how_broken(law, trial, scenario, []) is None
    assert unwitnessed(replace(law, witnesses={"never": scenario}), trial) == ["never"]
