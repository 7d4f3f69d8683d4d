"""Draws what samplers deal, within what is claimed; it shrinks to two ranks, one sample, and nothing special."""

from hypothesis import strategies as st

from lockstep.oracle.dealing import least_units
from lockstep.properties.claims import Claims
from lockstep.properties.data.dealing import Dealing

MOST_SAMPLES, MOST_IN_BATCH, MOST_EPOCH, MOST_SEED = 24, 4, 3, 3
# Samples of which two shuffles are never the same by chance, also where only whole batches are shuffled: 16 of them
# have more than 10**13 orders.
ENOUGH = 16 * MOST_IN_BATCH
_RANKS = (2, 3, 4, 5, 1)


@st.composite
def dealings(draw: st.DrawFn, claims: Claims) -> Dealing:
    """Of any length that there may be, and whole epochs."""
    return Dealing(
        min(draw(st.sampled_from(_RANKS)), claims.most_ranks),
        draw(st.integers(1, MOST_SAMPLES)),
        draw(st.integers(1, MOST_IN_BATCH)) if claims.batches else 0,
        shuffle=claims.shuffles and draw(st.booleans()),
        drop_last=claims.drops_last and draw(st.booleans()),
        seed=draw(st.integers(0, MOST_SEED)),
        epoch=draw(st.integers(0, MOST_EPOCH)),
    )


@st.composite
def shuffled(draw: st.DrawFn, claims: Claims) -> Dealing:
    """Shuffled, and long enough for another order to be seen."""
    return Dealing(
        min(draw(st.sampled_from(_RANKS)), claims.most_ranks),
        draw(st.integers(ENOUGH, ENOUGH + MOST_SAMPLES)),
        draw(st.integers(1, MOST_IN_BATCH)) if claims.batches else 0,
        shuffle=True,
        drop_last=claims.drops_last and draw(st.booleans()),
        seed=draw(st.integers(0, MOST_SEED)),
        epoch=draw(st.integers(0, MOST_EPOCH)),
    )


@st.composite
def interrupted(draw: st.DrawFn, claims: Claims) -> Dealing:
    """Interrupted up to three times, anywhere before the last item of an epoch, or when it has ended."""
    dealing = draw(dealings(claims))
    left = whole = least_units(dealing.length, dealing.world_size, dealing.unit)
    stops = []
    for drawn in draw(st.lists(st.integers(-1, MOST_SAMPLES), min_size=1, max_size=3)):
        stop = -1 if drawn < 0 else min(drawn, max(0, left - 1))
        left = whole if stop < 0 else left - stop
        stops.append(stop)
    return Dealing(**{**vars(dealing), "stops": tuple(stops)})


@st.composite
def resumed_elsewhere(draw: st.DrawFn, claims: Claims) -> Dealing:
    """The same, and it goes on on another number of ranks."""
    dealing = draw(interrupted(claims))
    others = [ranks for ranks in sorted(_RANKS) if ranks != dealing.world_size and ranks <= claims.most_ranks]
    return Dealing(**{**vars(dealing), "onto": draw(st.sampled_from(others))})


def evaluations(claims: Claims) -> st.SearchStrategy[Dealing]:
    """In the order of the data set, with nothing left out, as an evaluation is."""
    plain = dealings(claims)
    return plain.map(lambda drawn: Dealing(drawn.world_size, drawn.length, drawn.batch))
