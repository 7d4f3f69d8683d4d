"""Draw windows within the claims. They shrink to two ranks, one micro-batch, one token."""

from hypothesis import strategies as st

from lockstep.properties.claims import Claims
from lockstep.properties.loops.training import Training, Window

MOST_WINDOWS = 3
_RANKS = (2, 3, 4, 1)
_NORMS = (-1, 0, 2, 5)
_SIZES = st.lists(st.integers(0, 3), min_size=1, max_size=2)  # the tokens of each sample of a micro-batch


@st.composite
def windows(draw: st.DrawFn, world_size: int, batches: int, least: int) -> Window:
    """Micro-batches with any numbers of tokens, at least ``least`` in all."""
    drawn = [[draw(_SIZES) for _ in range(batches)] for _ in range(world_size)]
    if least and not any(any(batch) for rank in drawn for batch in rank):
        drawn[-1][-1][-1] = least
    return tuple(tuple(tuple(batch) for batch in rank) for rank in drawn)


@st.composite
def trainings(
    draw: st.DrawFn, claims: Claims, empty: bool = True, fewest: int = 1, most: int = MOST_WINDOWS
) -> Training:
    """Some windows, of which the last may have fewer micro-batches or, if ``empty``, no token at all."""
    ranks = draw(st.sampled_from([each for each in _RANKS if each <= claims.most_ranks]))
    number, full = draw(st.integers(fewest, most)), draw(st.integers(1, 3))
    last = full if number == 1 else draw(st.sampled_from(range(full, 0, -1)))
    drawn = [draw(windows(ranks, full, 1)) for _ in range(number - 1)]
    return Training(ranks, (*drawn, draw(windows(ranks, last, 0 if empty else 1))))


def with_tokens(claims: Claims) -> st.SearchStrategy[Training]:
    """A training in which every window has a token, so that its loss is a mean of at least one value."""
    return trainings(claims, empty=False)


@st.composite
def clipped(draw: st.DrawFn, claims: Claims) -> Training:
    """One window, clipped to some norm, possibly one that it never reaches."""
    training = draw(trainings(claims, empty=False, most=1))
    return Training(training.world_size, training.windows, max_norm=draw(st.sampled_from(_NORMS)))


@st.composite
def scheduled(draw: st.DrawFn, claims: Claims) -> Training:
    """At least two windows. If skipping is claimed, one of them may overflow."""
    training = draw(trainings(claims, empty=False, fewest=2))
    could = [place for place, each in enumerate(training.windows) if sum(map(sum, each[-1]))]
    overflow = draw(st.sampled_from([-1, *could])) if claims.skips_overflow else -1
    return Training(training.world_size, training.windows, overflow=overflow)
