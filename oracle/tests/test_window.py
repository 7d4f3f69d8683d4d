"""A step's loss and gradient by each policy: by hand, and laws that tell the policies apart."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.tests.examples import examples
from lockstep.oracle.window import POLICIES, Sample, gradient, loss

samples = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=4).map(
    lambda tokens: Sample(tuple(a for a, _ in tokens), tuple((b,) for _, b in tokens))
)
windows = st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda shape: st.lists(
        st.lists(st.lists(samples, max_size=2), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


def of(*losses):
    return Sample(losses, tuple((each,) for each in losses))


# Two ranks with two micro-batches each; the second rank has a micro-batch without tokens.
WINDOW = [[[of(1, 3)], [of(8)]], [[of(2, 2, 2)], [of()]]]


@pytest.mark.parametrize(
    ("policy", "mean"),
    [
        ("tokens", Fraction(18, 6)),
        ("rank", (Fraction(12, 3) + Fraction(6, 3)) / 2),
        ("micro-batch", (2 + 8 + 2 + Fraction(0)) / 4),
    ],
)
def test_a_window_by_hand(policy, mean):
    assert loss(WINDOW, policy) == mean
    assert gradient(WINDOW, policy, 1) == (mean,)


@pytest.mark.parametrize("policy", POLICIES)
def test_where_nothing_counts_everything_is_zero(policy):
    assert loss([[[of()]], [[]]], policy) == 0
    assert gradient([[[of()]], [[]]], policy, 3) == (0, 0, 0)


@examples(100)
@given(windows, st.randoms(use_true_random=False))
def test_by_tokens_it_does_not_matter_how_samples_are_dealt(window, random):
    every = [sample for rank in window for batch in rank for sample in batch]
    random.shuffle(every)
    whole = [[every]]
    assert loss(window, "tokens") == loss(whole, "tokens")
    assert gradient(window, "tokens", 1) == gradient(whole, "tokens", 1)


@examples(100)
@given(windows)
def test_where_each_micro_batch_has_one_token_all_policies_agree(window):
    one = [[[of(len(batch))] for batch in rank] for rank in window]
    assert len({loss(one, policy) for policy in POLICIES}) == 1


@pytest.mark.parametrize("window", [[], [[], []], [[[of(1)]], []]])
def test_ranks_have_as_many_micro_batches_and_at_least_one(window):
    with pytest.raises(ValueError, match="micro-batches"):
        loss(window, "tokens")


def test_unknown_policies_are_refused():
    with pytest.raises(ValueError, match="there are tokens, rank, micro-batch"):
        loss(WINDOW, "sample")
