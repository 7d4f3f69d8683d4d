"""Draw uses of samplers within the claims. They shrink to two ranks, one sample, and no options."""

from hypothesis import strategies as st

from lockstep.oracle.dealing import least_units
from lockstep.properties.claims import Claims
from lockstep.properties.data.dealing import Dealing

MOST_SAMPLES, MOST_IN_BATCH, MOST_EPOCH, MOST_SEED = 24, 4, 3, 3
# Enough samples that two shuffles are never equal by chance, even if only whole batches are shuffled. 16 batches have
# more than 10**13 orders.
ENOUGH = 16 * MOST_IN_BATCH
_RANKS = (2, 3, 4, 5, 1)


@st.composite
def dealings(draw: st.DrawFn, claims: Claims) -> Dealing:
    """Whole epochs of any length."""
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
    """Shuffled epochs, long enough that a change of order is visible."""
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
    """Epochs interrupted up to three times, before the last item or after the end."""
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
    """Interrupted epochs that continue on another number of ranks."""
    dealing = draw(interrupted(claims))
    others = [ranks for ranks in sorted(_RANKS) if ranks != dealing.world_size and ranks <= claims.most_ranks]
    return Dealing(**{**vars(dealing), "onto": draw(st.sampled_from(others))})


def evaluations(claims: Claims) -> st.SearchStrategy[Dealing]:
    """Epochs in the order of the data set with nothing left out, as in an evaluation."""
    plain = dealings(claims)
    return plain.map(lambda drawn: Dealing(drawn.world_size, drawn.length, drawn.batch))
