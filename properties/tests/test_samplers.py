"""Samplers and loaders: what is taken for one, what a report shows, and the oracle beside torch's own."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from lockstep.oracle.dealing import REMAINDERS, least_units, most_apart, tally, totals
from lockstep.oracle.tests.examples import examples
from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import Claims
from lockstep.properties.data import draws
from lockstep.properties.data.dealing import Dealing
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import CORRECT, Unusable, as_found, look_up, try_out
from lockstep.properties.law import concerns
from lockstep.properties.reports.failure import story
from lockstep.properties.searching.search import search
from lockstep.properties.strategies.independent import sample
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World

USER = "lockstep.properties.tests.user_samplers"
LAWS = {name: law for name, law in every_law().items() if law.number == "P20"}
FOUND = {
    "lockstep.impls.dealing:StridedSampler": "taken for a sampler; it gives single samples; "
    'the remainder: "repeat", or "drop" with drop_last; it shuffles if asked to; what is saved goes on on any ranks',
    f"{USER}:OfALength": 'taken for a sampler; it gives batches; the remainder: "repeat"',
    f"{USER}:makes_one": 'taken for a sampler; it gives batches; the remainder: "repeat"',
}
WRONG = {
    "NeedsMore": "taken for a sampler; making one and taking a sample raised TypeError",
    "GivesWords": "taken for a sampler; it gave 'a sample', which is no number of a sample and no batch",
}


@pytest.mark.parametrize("name", FOUND)
def test_a_run_says_what_was_taken_for_a_sampler(sim: World, name: str) -> None:
    (found,) = look_up([name], sim)
    try_out([found], sim)
    assert as_found(found) == FOUND[name]
    assert {law.number for law in every_law().values() if concerns(law, found.claims)} == {"P20"}


def test_no_wrapper_of_a_model_is_taken_for_one(sim: World) -> None:
    assert not any(found.claims.sampler for found in look_up(CORRECT[:4], sim))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_none_after_all_is_refused_in_one_line(sim: World, name: str) -> None:
    with pytest.raises(Unusable, match=re.escape(WRONG[name])) as refused:
        try_out(look_up([f"{USER}:{name}"], sim), sim)
    assert "\n" not in str(refused.value)


def test_what_was_written_for_one_rank_is_found_and_the_report_shows_what_each_rank_got(sim: World) -> None:
    (law,) = (law for law in LAWS.values() if "every_sample_to_one" in law.name)
    trial = trial_of(f"{USER}:Everything", sim)
    (failure,) = search(law, trial, 50, seed_value=0).failures
    told = "\n".join(story(law, trial, diagnose(trial, failure)))
    assert "Everything breaks P20 on the sim world: silently wrong" in told
    assert "The ranks get 4 samples of 2 in all; at most 3" in told or "at most 2 are due" in told
    assert "rank 1, epoch 0: 0" in told


@pytest.mark.parametrize("name", ["OfALength", "makes_one"])
def test_what_declares_nothing_and_is_right_passes(sim: World, name: str) -> None:
    for law in LAWS.values():
        trial = trial_of(f"{USER}:{name}", sim)
        if concerns(law, trial.claims):
            assert search(law, trial, 20, seed_value=0).failures == []


def test_what_is_drawn_can_be_interrupted_anywhere_and_keeps_to_what_is_left() -> None:
    claims = Claims(sampler=True, batches=True, shuffles=True, drops_last=True, resumes="any ranks")
    drawn = sample(draws.resumed_elsewhere(claims), 300)
    assert {len(each.stops) for each in drawn} == {1, 2, 3}
    assert {True, False} == {each.stops[0] < 0 for each in drawn} == {each.drop_last for each in drawn}
    for each in drawn:
        left = whole = least_units(each.length, each.world_size, each.unit)
        for stop in each.stops:
            assert stop <= max(0, left - 1)
            left = whole if stop < 0 else left - stop
        assert each.onto != each.world_size
        assert eval(repr(each)) == each


def test_words_say_everything_that_is_not_as_usual() -> None:
    dealing = Dealing(2, 7, 2, shuffle=True, drop_last=True, seed=1, epoch=3, stops=(2, -1), onto=3)
    assert dealing.words() == (
        "2 ranks: 7 samples, in batches of 2, shuffled with seed 1, drop_last, "
        "saved and loaded after 2 items of epoch 3, and again at the end after that, on 3 ranks"
    )


@examples(200)
@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.booleans())
def test_what_torchs_sampler_deals_is_what_the_oracle_allows(length, world_size, shuffle, drop_last):
    shares = [
        list(DistributedSampler(range(length), world_size, rank, shuffle, drop_last=drop_last))
        for rank in range(world_size)
    ]
    remainder = "drop" if drop_last else "repeat"
    found, sizes = tally(shares, range(length)), {len(share) for share in shares}
    assert sum(map(len, shares)) in totals(length, world_size, 1, remainder)
    assert max(sizes) - min(sizes) <= most_apart(1, remainder)
    assert found.foreign == ()
    assert (found.missing if remainder == "repeat" else found.repeated) == ()
    assert min(sizes) >= least_units(length, world_size, 1)


@examples(200)
@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 5), st.sampled_from(REMAINDERS))
def test_whole_units_in_turn_are_always_allowed_and_one_more_for_a_rank_is_not(length, world_size, unit, remainder):
    """Dealt as plainly as can be: units in turn, the last round filled up, left as it is, or left out."""
    whole, order = world_size * unit, list(range(length))
    if remainder == "drop":
        order = order[: length // whole * whole]
    elif remainder == "repeat" and length:
        order = [place % length for place in range(-(-length // whole) * whole)]
    units = [order[start : start + unit] for start in range(0, len(order), unit)]
    shares = [[each for one in units[rank::world_size] for each in one] for rank in range(world_size)]
    sizes = [len(share) for share in shares]
    assert len(order) in totals(length, world_size, unit, remainder)
    assert max(sizes) - min(sizes) <= most_apart(unit, remainder)
    assert min(sizes) >= least_units(length, world_size, unit) * (unit if remainder != "uneven" else 1)
    more = len(order) + whole
    assert more not in totals(length, world_size, unit, remainder)
