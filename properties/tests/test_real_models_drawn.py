"""What runs of real models are drawn, how they shrink, and what cannot be one."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from lockstep.properties.claims import EQUAL_FROM, Claims
from lockstep.properties.models.draws import evaluated_scenarios, model_scenarios, saved_scenarios
from lockstep.properties.models.scenario import BUFFERED, SPARSE, ModelScenario

EVERYTHING = Claims(
    bucket_cap=True,
    unused="untouched",
    tied_parameters=True,
    freezing=True,
    keyword_inputs=True,
    buffers="initial",
    reentrant_checkpointing="any",
)


@settings(max_examples=100, database=None)
@given(model_scenarios(Claims(accumulation=False)))
def test_what_is_not_claimed_is_not_drawn(scenario: ModelScenario) -> None:
    assert scenario.model in ("mlp", "transformer")
    assert scenario.checkpoint != "re-entrant"
    assert not any(scenario.local)
    assert not scenario.thaws
    assert scenario.bucket_cap is None


@settings(max_examples=60, database=None)
@given(saved_scenarios(replace(EVERYTHING, equal_from=EQUAL_FROM[1])))
def test_where_a_first_forward_sends_buffers_nothing_with_buffers_is_saved(scenario: ModelScenario) -> None:
    assert scenario.saved
    assert scenario.model not in BUFFERED


@settings(max_examples=60, database=None)
@given(evaluated_scenarios(replace(EVERYTHING, buffers="each")))
def test_where_each_forward_sends_buffers_nothing_with_buffers_is_evaluated(scenario: ModelScenario) -> None:
    assert scenario.evaluated
    assert scenario.model not in BUFFERED


@settings(max_examples=60, database=None)
@given(st.one_of(*(draws(replace(EVERYTHING, sparse_gradients=True)) for draws in (model_scenarios, saved_scenarios))))
def test_sparse_gradients_are_drawn_where_a_law_asks_for_them_alone(scenario: ModelScenario) -> None:
    assert scenario.model != SPARSE


def smallest(condition, claims: Claims = EVERYTHING, draws=model_scenarios) -> ModelScenario:
    options = settings(
        max_examples=300,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],  # nobody reads an explanation here
        suppress_health_check=list(HealthCheck),
    )
    return find(draws(claims), condition, settings=options)


CONDITIONS = {
    "anything": (lambda scenario: True, ModelScenario()),
    "a transformer": (lambda scenario: scenario.model == "transformer", ModelScenario("transformer")),
    "a module used twice and recomputed re-entrantly": (
        lambda scenario: scenario.twice and scenario.checkpoint == "re-entrant",
        ModelScenario("transformer", checkpoint="re-entrant", twice=True),
    ),
    "accumulation": (lambda scenario: any(scenario.local), ModelScenario(local=(1,))),
    "two steps": (lambda scenario: len(scenario.local) > 1, ModelScenario(local=(0, 0))),
    "outputs used differently by rank": (
        lambda scenario: len(set(scenario.heads)) > 1,
        ModelScenario("two heads", heads=(1, 2)),
    ),
    "five ranks": (lambda scenario: scenario.world_size == 5, ModelScenario(world_size=5)),
    "a small bucket": (lambda scenario: scenario.bucket_cap, ModelScenario(bucket_cap=16)),
    "Adam": (lambda scenario: scenario.optimizer == "Adam", ModelScenario("tied", optimizer="Adam")),
    "a frozen layer, the last": (lambda scenario: scenario.frozen == "second", ModelScenario(frozen="second")),
    "a frozen layer inside": (
        lambda scenario: scenario.frozen == "block",
        ModelScenario("transformer", frozen="block"),
    ),
    "a block used twice that is the last to be final": (
        lambda scenario: scenario.twice and scenario.checkpoint == "re-entrant" and scenario.frozen == "embedding",
        ModelScenario("transformer", checkpoint="re-entrant", twice=True, frozen="embedding"),
    ),
    "a layer that is trained again": (
        lambda scenario: scenario.thaws,
        ModelScenario(local=(0, 0), frozen="second", thaws=1),
    ),
    "float64": (lambda scenario: scenario.dtype == "float64", ModelScenario(dtype="float64")),
    "keywords and mappings": (lambda scenario: scenario.named, ModelScenario(named=True)),
    "a change in place": (lambda scenario: scenario.in_place, ModelScenario(in_place=True)),
    "outputs in a class": (lambda scenario: scenario.classed, ModelScenario(classed=True)),
    "batches of several sizes": (lambda scenario: scenario.uneven, ModelScenario(uneven=True)),
    "autocast": (lambda scenario: scenario.autocast, ModelScenario("tied", autocast=True)),
}


@pytest.mark.parametrize("kind", CONDITIONS)
def test_each_kind_is_drawn_and_shrinks_to_what_a_person_would_write(kind: str) -> None:
    condition, minimum = CONDITIONS[kind]
    assert smallest(condition) == minimum


FROM_CHECKPOINTS = [
    (saved_scenarios, lambda scenario: True, ModelScenario(local=(0, 0), saved=1)),
    (saved_scenarios, lambda scenario: scenario.saved == 2, ModelScenario(local=(0, 0, 0), saved=2)),
    (
        saved_scenarios,
        lambda scenario: scenario.thaws > scenario.saved,
        ModelScenario(local=(0, 0, 0), frozen="second", thaws=2, saved=1),
    ),
    (evaluated_scenarios, lambda scenario: True, ModelScenario(evaluated=1)),
    (evaluated_scenarios, lambda scenario: scenario.saved, ModelScenario(local=(0, 0), saved=1, evaluated=1)),
    (
        evaluated_scenarios,
        lambda scenario: len(scenario.local) > scenario.evaluated,
        ModelScenario(local=(0, 0), evaluated=1),
    ),
]


@pytest.mark.parametrize(("draws", "condition", "minimum"), FROM_CHECKPOINTS)
def test_what_is_saved_or_evaluated_shrinks_to_what_a_person_would_write(draws, condition, minimum) -> None:
    assert smallest(condition, draws=draws) == minimum


@pytest.mark.parametrize("scenario", [minimum for *_, minimum in (*CONDITIONS.values(), *FROM_CHECKPOINTS)], ids=repr)
def test_a_scenario_evaluates_back_and_has_json_both_ways(scenario: ModelScenario) -> None:
    assert eval(repr(scenario)) == scenario
    assert ModelScenario.from_json(scenario.to_json()) == scenario


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "vgg"}, "model is one of .* not 'vgg'"),
        ({"world_size": 0}, "at least one rank and one step, not world_size=0"),
        ({"local": ()}, r"local=\(\)"),
        ({"twice": True}, "a transformer's, not of 'mlp'"),
        ({"model": "two heads"}, r"one number a rank in heads, not \(\)"),
        ({"model": "two heads", "heads": (1, 4)}, r"1, 2 or 3 \(both\), not \(1, 4\)"),
        ({"frozen": "third"}, "of 'mlp' may be frozen: 'second', 'first', not 'third'"),
        ({"frozen": "first", "thaws": 1}, "thaws after some step, not with thaws=1, frozen='first', of 1 steps"),
        ({"saved": 1}, "after a step but the last, .* not with saved=1, evaluated=0, of 1 steps"),
        ({"evaluated": 2}, "evaluated after any, not with saved=0, evaluated=2, of 1 steps"),
        ({"dtype": "int8"}, "dtype is one of .* not 'int8'"),
        ({"model": "tied", "through": True}, "inputs of mlp, .* take a gradient, not those of 'tied'"),
        ({"autocast": True}, "autocast is for models that round, in float32, .* not for 'mlp' in float32, twice=False"),
    ],
)
def test_a_scenario_that_cannot_be_says_what_is_wrong(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        ModelScenario(**options)
