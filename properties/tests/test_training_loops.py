"""Training loops: what is taken for one, what is drawn, and the expectation beside plain sums of Fractions."""

import re
from collections.abc import Iterator
from fractions import Fraction

import pytest

from lockstep.oracle.window import POLICIES
from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import Claims
from lockstep.properties.implementations import CORRECT, Unusable, as_found, look_up, try_out
from lockstep.properties.law import concerns
from lockstep.properties.loops import draws
from lockstep.properties.loops.expected import BEGIN, RATE, expected
from lockstep.properties.loops.training import Training
from lockstep.properties.searching.search import search
from lockstep.properties.strategies.independent import sample
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World

USER = "lockstep.properties.tests.user_loops"
FOUND = {
    "lockstep.impls.training_loop:PerRank": "taken for a training loop; the mean is over each rank's tokens, "
    "then ranks; it clips the norm; it steps a schedule; it skips steps that overflow",
    f"{USER}:SumsTokens": "taken for a training loop; the mean is over all tokens of a window",
    f"{USER}:makes_one": "taken for a training loop; the mean is over all tokens of a window",
}
WRONG = {
    "NeedsMore": "taken for a training loop; making one and training a step raised TypeError",
    "ReturnsNothing": "taken for a training loop; its train_step returned None, not the loss, the norm or None, and",
}


@pytest.mark.parametrize("name", FOUND)
def test_a_run_says_what_was_taken_for_a_training_loop(sim: World, name: str) -> None:
    (found,) = look_up([name], sim)
    try_out([found], sim)
    assert as_found(found) == FOUND[name]
    assert {law.number for law in every_law().values() if concerns(law, found.claims)} == {"P19"}


def test_no_wrapper_of_a_model_is_taken_for_one(sim: World) -> None:
    assert not any(found.claims.loop for found in look_up(CORRECT[:4], sim))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_none_after_all_is_refused_in_one_line(sim: World, name: str) -> None:
    with pytest.raises(Unusable, match=re.escape(WRONG[name])) as refused:
        try_out(look_up([f"{USER}:{name}"], sim), sim)
    assert "\n" not in str(refused.value)


def test_what_declares_nothing_and_is_right_passes(sim: World) -> None:
    trial = trial_of(f"{USER}:SumsTokens", sim)
    for law in every_law().values():
        if concerns(law, trial.claims):
            assert search(law, trial, 20, seed_value=0).failures == []


def test_what_is_drawn_reaches_every_corner() -> None:
    drawn = sample(draws.trainings(Claims(loop=True)), 300)
    ranks = [[sum(map(sum, rank)) for rank in window] for each in drawn for window in each.windows]
    assert any(0 in tokens and any(tokens) for tokens in ranks)  # a rank without any token takes part
    assert any(not any(tokens) for tokens in ranks)
    assert any(len(each.windows[-1][0]) < each.accumulate for each in drawn)
    assert {each.world_size for each in drawn} == {1, 2, 3, 4}
    assert all(eval(repr(each)) == each for each in drawn)


def test_drawn_norms_are_above_and_below_the_limit() -> None:
    drawn = sample(draws.clipped(Claims(loop=True, clips_norm=True)), 100)
    norms = [(next(expected(each, "tokens", False)).norm, Fraction(2) ** (each.max_norm or 0)) for each in drawn]
    assert any(norm.low > limit for norm, limit in norms)
    assert any(norm.high < limit for norm, limit in norms)


def exact(training: Training, policy: str) -> Iterator[tuple[Fraction, Fraction, list[Fraction], Fraction]]:
    """Of each window its mean token, the loss, the weights after it, and what its smallest token adds to the mean; the
    means written out anew, token by token, without the oracle."""
    weights, rate = list(BEGIN), RATE
    for ranks in training.values():
        total, size, count, parts = Fraction(0), len(ranks), len(ranks[0]), []
        every = sum(len(sample) for rank in ranks for batch in rank for sample in batch)
        for rank in ranks:
            mine = sum(len(sample) for batch in rank for sample in batch)
            for batch in rank:
                here = sum(map(len, batch))
                divisor = {"tokens": every, "rank": mine * size, "micro-batch": here * size * count}[policy]
                parts += [Fraction(token, divisor) for sample in batch for token in sample]
        total, value = sum(parts, Fraction(0)), 3 * weights[0] + 4 * weights[1]
        weights = [weights[0] - rate * 3 * total, weights[1] - rate * 4 * total]
        yield total, total * value, weights, min(parts)
        rate /= 2


@pytest.mark.parametrize("policy", POLICIES)
def test_the_expectation_is_around_plain_sums_and_shows_each_token(policy: str) -> None:
    """No interval has room for one token more or less."""
    for training in sample(draws.with_tokens(Claims(loop=True)), 100):
        seen = zip(expected(training, policy, True), exact(training, policy), strict=True)
        for place, (due, (mean, loss, weights, least)) in enumerate(seen):
            assert due.rate == RATE / 2**place
            middles = {due.loss: loss, due.norm: 5 * mean, **dict(zip(due.weights, weights, strict=True))}
            assert all((each.low + each.high) / 2 == middle for each, middle in middles.items())
            changes = {due.norm: 5 * least, due.weights[0]: 3 * due.rate * least, due.weights[1]: 4 * due.rate * least}
            changes |= {due.loss: least * abs(loss / mean)}
            assert all(each.high - each.low < change for each, change in changes.items())


def test_words_say_everything_that_is_drawn() -> None:
    training = Training(2, ((((1, 2), (0,)), ((3,), (2,))),), max_norm=-1, overflow=0)
    assert training.words() == (
        "2 ranks: window 0 has the tokens rank 0: 1+2, 0; rank 1: 3, 2; clipped to a norm of 0.5; "
        "gradients overflow in window 0"
    )
