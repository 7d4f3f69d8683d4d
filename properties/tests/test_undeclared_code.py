"""Code that declares nothing is held to what its shape says, however odd: no false alarm, and a hint where due."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.law import concerns
from lockstep.properties.ranks import adapter
from lockstep.properties.ranks.probes import Inputs
from lockstep.properties.reports.failure import story
from lockstep.properties.running.probing import probe
from lockstep.properties.searching.search import search
from lockstep.properties.searching.witnesses import unwitnessed
from lockstep.properties.test_binding import STOOD
from lockstep.properties.tests.scripts import lines
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import SilentlyWrong
from lockstep.worlds.contract import World

LAWS = every_law()
(MEAN,) = (name for name in LAWS if name.endswith("gradients_equal_the_mean_over_ranks"))
WIRE = "test_gradients_travel_in_their_own_dtype_or_a_wider_one"
CLAIMED_WIRE = "test_gradients_are_reduced_in_the_dtype_that_is_claimed"
COMPRESSED = "test_compressed_gradients_travel_in_the_dtype_that_is_claimed"
DROPPED = "test_a_window_that_is_dropped_halfway_leaves_no_trace"
ODD = (
    *("Averaging", "Bytes", "Ring", "Exchanges", "OwnNames", "made_by_a_function", "Learns"),
    *("BroadcastsInTurn", "SetsWhetherToSynchronize", "TellsAliases", "TakesOneInput"),
)


def trial(name: str, world: World) -> Trial:
    return trial_of(f"lockstep.properties.tests.undeclared:{name}", world)


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_and_right_passes_all_laws_that_its_shape_claims(sim: World, name: str) -> None:
    held = 0
    for law in LAWS.values():
        under_test = trial(name, sim)
        if concerns(law, under_test.claims):
            found = search(law, under_test, 3, seed_value=0)
            assert found.failures == [], law.name
            assert unwitnessed(law, under_test) == []
            held += under_test.witnessed[ENDED] > 0
    assert held > 10


def test_a_forward_of_one_argument_hides_no_fault_behind_it(sim: World) -> None:
    """The model's inputs come in one tuple, in programs, under hooks of the caller's, and in scripts."""
    name = "lockstep.properties.tests.user_code:TakesOneInputAndSums"
    under_test = trial_of(name, sim)
    assert under_test.implementation.takes_one
    assert len(Inputs._fields) == adapter.INPUTS
    (failure,) = search(LAWS[MEAN], under_test, 20, seed_value=0).failures
    assert isinstance(failure.broken, SilentlyWrong)
    right = "lockstep.properties.tests.undeclared:TakesOneInput"
    for implementation, verdict in ((name, "WRONG"), (right, "right")):
        told = lines(sim, implementation, failure.broken.scenario)
        assert any(line.startswith("rank 0: the gradient of a is") and verdict in line for line in told)
    hooked = trial_of(right, sim).run(replace(failure.broken.scenario, caller=Caller(module_hooked=1)))
    assert hooked.observations[0]["gradients"]


def test_who_has_a_zero_method_of_its_own_is_not_blamed_for_a_window_that_was_dropped_without_it(sim: World) -> None:
    """It is told, and fails nothing; whoever has no such method must do without."""
    names = ("user_code:HasAZeroMethodOfItsOwn", "user_code:KeepsMainGradients")
    own, none = (trial_of(f"lockstep.properties.tests.{name}", sim) for name in names)
    assert (own.claims.drops_windows, none.claims.drops_windows) == (False, True)
    assert search(LAWS[MEAN], own, 100, seed_value=0).failures == []
    assert probe(LAWS[DROPPED], own)[0] == "silently wrong"
    assert search(LAWS[DROPPED], none, 20, seed_value=0).failures


def test_a_clip_that_takes_no_norm_type_is_called_where_it_need_not(sim: World) -> None:
    """Else torch's would be called in its place, and hold."""
    own = trial_of("lockstep.properties.tests.user_code:ClipsEachByItself", sim)
    found = search(LAWS["test_clipping_scales_every_gradient_by_one_factor"], own, 100, seed_value=0)
    assert found.failures


@pytest.mark.parametrize(
    ("clip", "norm_type", "words"),
    [
        (lambda max_norm: None, float("inf"), "takes no norm_type, which is inf here"),
        (lambda max_norm: None, 2.0, "takes no norm_type and returns no norm"),
    ],
)
def test_a_clip_of_another_shape_is_refused(clip: Callable[..., None], norm_type: float, words: str) -> None:
    with pytest.raises(NotImplementedError, match=words):
        adapter.clip(SimpleNamespace(clip_grad_norm_=clip), 1.0, norm_type)


def test_a_clip_that_tells_no_norm_is_wrong_by_the_law_on_norms_alone(sim: World) -> None:
    silent = trial_of("lockstep.impls.faults.clipping:ReturnsNoNorm", sim)
    (failure,) = search(LAWS["test_the_reported_norm_is_that_of_the_whole_averaged_gradient"], silent, 50).failures
    assert "the norm of all gradients is None where it must be" in failure.broken.headline
    for law in (MEAN, "test_clipping_scales_every_gradient_by_one_factor"):
        assert search(LAWS[law], silent, 50, seed_value=0).failures == []


def test_a_cap_that_must_be_given_is_given(sim: World) -> None:
    under_test = trial("NeedsItsCap", sim)
    assert search(LAWS[MEAN], under_test, 20, seed_value=0).failures == []
    assert under_test.witnessed[ENDED]


@pytest.mark.parametrize(
    "law",
    [
        MEAN,
        "test_no_sync_accumulates_and_then_counts_once",
        "test_steps_of_shards_are_steps_of_the_whole",
        "test_an_evaluation_reads_what_the_last_step_has_left",
        "test_saving_loading_and_going_on_equals_a_run_that_was_not_interrupted",
    ],
)
def test_a_module_may_have_its_parameters_in_forward_alone(sim: World, law: str) -> None:
    under_test = trial_of("lockstep.properties.tests.user_code:LentParameters", sim)
    assert search(LAWS[law], under_test, 15, seed_value=0).failures == []
    assert under_test.witnessed[ENDED]


@pytest.mark.parametrize("wire", [None, "float32"])
def test_what_reduces_only_when_it_is_looked_at_sends_nothing_too_narrow(sim: World, wire: str | None) -> None:
    """Nothing is known of what it would send by itself, so the laws on that show nothing, and fail nothing."""
    under_test = trial_of("lockstep.properties.tests.user_code:AveragesWhenLookedAt", sim)
    implementation = under_test.implementation
    under_test.implementation = replace(implementation, claims=replace(implementation.claims, reduce_dtype=wire))
    law = LAWS[CLAIMED_WIRE if wire else WIRE]
    for each in (LAWS[MEAN], law):
        assert search(each, under_test, 20, seed_value=0).failures == []
    assert unwitnessed(law, under_test) == [*law.witnesses]


def test_an_optimizer_whose_state_cannot_be_seen_is_refused_by_what_is_missing(sim: World) -> None:
    under_test = trial("MakesAnOptimizerAlone", sim)
    found = search(LAWS[MEAN], under_test, 8, seed_value=0)
    assert found.failures == []
    assert not under_test.witnessed[ENDED]
    said = "make_optimizer goes with full_optimizer_state and load_full, by which its state is seen"
    assert f"{said}; there is no full_optimizer_state and no load_full" in str(found.refusals[0])


def test_seven_ranks_that_multiply_by_the_reciprocal_are_right(sim: World) -> None:
    """float32, where the product is another number than the quotient: such data is not drawn."""
    program = (Backward(((0,),) * 7), Finish())
    under_test = trial("Averaging", sim)
    run = under_test.run(Scenario(7, (Parameter((2,)),), program))
    quotients = [713.0, 917.0]
    assert run.observations[0]["gradients"][1][0].tolist() != quotients
    with pytest.raises(ValueError, match="the rounded 1/7 of float32 does not give every quotient"):
        under_test.expected(Scenario(7, (Parameter((2,)),), program))


def test_a_report_says_that_nothing_was_called_where_something_sounds_like_it(sim: World) -> None:
    under_test = trial("Similar", sim)
    (failure, *_) = search(LAWS[MEAN], under_test, 50, seed_value=0).failures
    words = " ".join(" ".join(story(LAWS[MEAN], under_test, diagnose(under_test, failure, to_the_core=False))).split())
    assert "Lockstep calls nothing to finish the synchronization. If finish_grad_sync() should be called" in words


def test_a_report_names_what_is_claimed_for_code_that_declares_nothing_where_the_program_needs_it(sim: World) -> None:
    under_test = trial_of("lockstep.properties.tests.user_code:KeepsMainGradients", sim)
    failure = search(LAWS[DROPPED], under_test, 20, seed_value=0).failures[0]
    told = " ".join(
        " ".join(story(LAWS[DROPPED], under_test, diagnose(under_test, failure, to_the_core=False))).split()
    )
    assert (
        'KeepsMainGradients does not declare "accumulation" and "drops_windows", so Lockstep assumes them. Only if '
        'your class is not meant to support that, put `"accumulation": False` or `"drops_windows": False` into its '
        "`claims`. Lockstep then draws no such programs"
    ) in told
    declaring = replace(under_test, implementation=replace(under_test.implementation, undeclared=()))
    assert "Lockstep then draws no such programs" not in " ".join(
        story(LAWS[DROPPED], declaring, diagnose(declaring, failure, to_the_core=False))
    )


@pytest.mark.parametrize("law", [MEAN, WIRE])
def test_a_report_names_the_claim_of_who_means_to_compress(sim: World, law: str) -> None:
    """Values that do not fit are rounded; with the claim they all fit, and no law asks for what is wider."""
    under_test = trial_of("lockstep.properties.tests.user_code:CompressesUnasked", sim)
    failure = search(LAWS[law], under_test, 60, seed_value=0).failures[0]
    told = " ".join(" ".join(story(LAWS[law], under_test, diagnose(under_test, failure, to_the_core=False))).split())
    assert "gradients travel in bfloat16, which rounds values that need more digits." in told
    assert 'If that is intended, claim "wire_dtype": "bfloat16"; Lockstep then draws only values that fit.' in told
    claims = replace(under_test.claims, wire_dtype="bfloat16")
    meaning_to = replace(under_test, implementation=replace(under_test.implementation, claims=claims))
    assert search(LAWS[MEAN], meaning_to, 60, seed_value=0).failures == []
    assert not concerns(LAWS[WIRE], claims)
    assert concerns(LAWS[COMPRESSED], claims)
    other = replace(
        under_test, implementation=replace(under_test.implementation, claims=replace(claims, wire_dtype="float16"))
    )
    broken = search(LAWS[COMPRESSED], other, 20, seed_value=0).failures[0]
    assert "If that is intended" not in " ".join(
        story(LAWS[COMPRESSED], other, diagnose(other, broken, to_the_core=False))
    )


def test_a_report_names_what_a_law_is_held_against_the_code_for(sim: World) -> None:
    """Where the program itself needs nothing that is claimed."""
    law = LAWS["test_gradients_may_be_zeroed_between_forward_and_backward"]
    under_test = trial_of("lockstep.impls.faults.prepared:ForgetsWithItsGradients", sim)
    under_test = replace(under_test, implementation=replace(under_test.implementation, undeclared=("zeroes_late",)))
    told = " ".join(
        " ".join(
            story(
                law,
                under_test,
                diagnose(under_test, search(law, under_test, 100, seed_value=0).failures[0], to_the_core=False),
            )
        ).split()
    )
    assert 'does not declare "zeroes_late", so Lockstep assumes it' in told
    assert '`"zeroes_late": False` into its `claims`' in told


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("lockstep.properties.tests.undeclared:Averaging", False),
        ("lockstep.properties.tests.undeclared:made_by_a_function", False),
        ("lockstep.properties.tests.user_code:TakesNothing", False),
        ("lockstep.impls.naive:NaiveDataParallel", True),
        ("lockstep.impls.frameworks.replicate:Replicate", True),  # no module, but what is called like one
    ],
)
def test_keywords_are_claimed_of_what_is_called_with_any(sim: World, name: str, takes: bool) -> None:
    """What takes inputs alone is given no keyword."""
    assert trial_of(name, sim).claims.keyword_inputs == takes


@pytest.mark.parametrize(
    ("name", "stands"),
    [
        ("lockstep.properties.tests.undeclared:Averaging", True),
        ("lockstep.properties.tests.undeclared:made_by_a_function", False),
        ("lockstep.properties.tests.undeclared:SavesForTheModelAlone", False),
        ("lockstep.impls.faults.standing:SavesWithoutItsPrefix", True),
        ("lockstep.impls.frameworks.replicate:Replicate", False),  # no module
        ("lockstep.impls.zero1:Zero1", False),
    ],
)
def test_a_module_that_saves_and_loads_in_one_way_stands_for_its_model(sim: World, name: str, stands: bool) -> None:
    """Not one that shards."""
    assert trial_of(name, sim).claims.stands_for_model == stands


def test_who_tells_no_parameters_shows_nothing_of_standing_for_its_model(sim: World) -> None:
    """And fails nothing: nobody makes an optimizer of none."""
    law = LAWS["test_the_wrapper_stands_for_the_model_where_it_is_asked_for_parameters_and_state"]
    for name, shows in (("KeepsItsModuleToItself", [STOOD]), ("TellsAliases", []), ("Averaging", [])):
        under_test = trial(name, sim)
        assert search(law, under_test, 100, seed_value=0).failures == []
        assert list(unwitnessed(law, under_test)) == shows
