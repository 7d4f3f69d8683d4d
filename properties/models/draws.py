"""Draw runs of real models within the claims; for models in integers only runs in which nothing rounds.

All shrink to a perceptron on two ranks, one micro-batch, one step, no options.
"""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.lattice import Inexact
from lockstep.properties.claims import EQUAL_FROM, Claims
from lockstep.properties.models import exact
from lockstep.properties.models.scenario import (
    BUFFERED,
    CONTINUOUS,
    EXACT,
    LAYERS,
    MODELS,
    OPTIMIZERS,
    SPARSE,
    ModelScenario,
)

MOST_RANKS = 5
CAPS = (None, 16, 64, 200)  # bytes; parameters have 8 to 192 bytes
SEEDS = 3
DENSE = tuple(model for model in MODELS if model != SPARSE)
WITHOUT_BUFFERS = tuple(model for model in DENSE if model not in BUFFERED)


def claimed(claims: Claims) -> Iterator[str]:
    """The models that an implementation with these claims must support."""
    needs = {
        "tied": claims.tied_parameters,
        "two heads": claims.unused is not None,
        SPARSE: claims.sparse_gradients,
        **dict.fromkeys(BUFFERED, claims.buffers is not None),
    }
    yield from (model for model in MODELS if needs.get(model, True))


@st.composite
def model_scenarios(
    draw: st.DrawFn, claims: Claims, models: tuple[str, ...] = DENSE, accumulating: bool = False, steps: int = 1
) -> ModelScenario:
    """A run of one of these models, as far as claimed, with at least so many steps.

    ``accumulating``: at least one micro-batch is inside `no_sync`.
    """
    model = draw(st.sampled_from([each for each in (*claimed(claims), "transformer") if each in models]))
    ranks = min(draw(st.sampled_from((2, 3, 1, 5, 4))), claims.most_ranks)
    if claims.parameters_per_rank:  # some models train no more than two parameters
        ranks = min(ranks, 2 // claims.parameters_per_rank)
    local = draw(st.lists(st.integers(0, 2 if claims.accumulation else 0), min_size=steps, max_size=3).map(tuple))
    if accumulating and not any(local):
        local = (1, *local[1:])
    # Everything is drawn in any case. Otherwise draws of different models would not align, and some would pass for
    # smaller.
    checkpoints = ("", "not re-entrant", "re-entrant") if claims.reentrant_checkpointing else ("", "not re-entrant")
    checkpoint, twice = draw(st.sampled_from(checkpoints)), draw(st.booleans())
    recomputed_once = checkpoint == "re-entrant" and claims.reentrant_checkpointing != "any"
    twice = twice and model == "transformer" and not recomputed_once
    heads = draw(st.tuples(*[st.integers(1, 3)] * MOST_RANKS))[:ranks]
    dtype = draw(st.sampled_from(("float32", "float64")[: 1 + claims.float64]))
    optimizer = draw(st.sampled_from(OPTIMIZERS))
    # With a frozen embedding, no gradient becomes final after a block used twice, so a bucket sent too early shows.
    likely = "embedding" if twice and checkpoint == "re-entrant" else ""
    frozen = draw(st.sampled_from(("", likely, *LAYERS[model])))
    thaws = draw(st.integers(0, len(local) - 1))
    return ModelScenario(
        model,
        ranks,
        local,
        checkpoint if model == "transformer" else "",
        twice,
        heads if model == "two heads" else (),
        dtype,
        "SGD" if model in EXACT else optimizer,
        draw(st.sampled_from(CAPS)) if claims.bucket_cap else None,
        draw(st.integers(0, SEEDS - 1)),
        frozen,
        thaws if frozen and claims.freezing else 0,
        named=claims.keyword_inputs and draw(st.booleans()),
        uneven=draw(st.booleans()),
        autocast=draw(st.booleans()) and model not in EXACT and dtype == "float32" and not twice,
        classed=claims.output_classes and draw(st.booleans()),
        in_place=claims.in_place and draw(st.booleans()),
    )


def provable_scenarios(
    claims: Claims, models: tuple[str, ...] = DENSE, accumulating: bool = False, steps: int = 1
) -> st.SearchStrategy[ModelScenario]:
    """Runs whose values can be proved.

    Runs in integers must stay exact. Other runs must have local gradients that equal plain torch's.
    """
    provable = tuple(model for model in models if claims.plain_bits or model in EXACT)
    drawn: st.SearchStrategy[ModelScenario] = model_scenarios(claims, provable, accumulating, steps)
    return drawn.filter(lambda scenario: is_provable(scenario, claims.averaging))


def continued_scenarios(claims: Claims) -> st.SearchStrategy[ModelScenario]:
    """Runs whose inputs need a gradient, as if another model had computed them."""
    drawn = provable_scenarios(claims, CONTINUOUS)
    return drawn.map(lambda scenario: replace(scenario, through=True))


def saved_scenarios(claims: Claims) -> st.SearchStrategy[ModelScenario]:
    """Runs that save and load after a step that is not the last one.

    Models with buffers are left out if the first forward may broadcast rank 0's, because each rank saves its own.
    """
    models = DENSE if claims.equal_from == EQUAL_FROM[0] else WITHOUT_BUFFERS
    return provable_scenarios(claims, models, steps=2).flatmap(
        lambda scenario: st.builds(replace, st.just(scenario), saved=st.integers(1, len(scenario.local) - 1))
    )


def evaluated_scenarios(claims: Claims) -> st.SearchStrategy[ModelScenario]:
    """Runs with an evaluation after some step and each later one. Some runs are also saved and loaded.

    Models whose buffers are broadcast before each forward are left out, because no claim says if evaluations do so.
    """
    models = DENSE if claims.equal_from == EQUAL_FROM[0] and claims.buffers != "each" else WITHOUT_BUFFERS
    return provable_scenarios(claims, models).flatmap(
        lambda scenario: st.builds(
            replace,
            st.just(scenario),
            evaluated=st.integers(1, len(scenario.local)),
            saved=st.integers(0, len(scenario.local) - 1),
        )
    )


def is_provable(scenario: ModelScenario, averaging: str) -> bool:
    """True if nothing rounds, or if the proof does not need that."""
    if scenario.model in EXACT:
        try:
            exact.train(scenario, averaging)
        except Inexact:
            return False
    return True
