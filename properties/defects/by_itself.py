"""The law that a failing program breaks by its values, regardless of the law for which it was drawn."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstep.oracle.events import Evaluate, Load, SaveAndLoad, Step
from lockstep.properties.catalogue import every_law
from lockstep.properties.judging import judge
from lockstep.properties.law import Law, concerns
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import errors_of

ANY = "test_features_go_together_in_any_combination"
MEAN = "test_gradients_equal_the_mean_over_ranks"
COLLECTIVES = "test_every_rank_issues_the_same_collectives"
START = "test_every_rank_starts_with_the_parameters_of_rank_0"
BUFFERS = "test_buffers_are_those_of_rank_0_when_it_is_claimed"
CLIPPING = "test_clipping_scales_every_gradient_by_one_factor"
ACCUMULATION = "test_no_sync_accumulates_and_then_counts_once"
HEADLINES: Mapping[str, str] = {
    ANY: "The program does not compute what it must.",
    MEAN: "A gradient is not the mean over ranks.",
    START: "Ranks do not start with rank 0's parameters.",
    BUFFERS: "Buffers are not rank 0's.",
    CLIPPING: "The norm of gradients is not what it must be.",
    ACCUMULATION: "Accumulated micro-batches do not count once each.",
}


def broken_by(broken: LawBroken, met: Law, trial: Trial) -> Law:
    """The law that a failing program breaks by its values. ``met``: the law under which the failure was found."""
    law = every_law().get(_name(broken), met)
    if not concerns(law, trial.implementation.claims):
        law = met
    headline = HEADLINES.get(law.name, HEADLINES[ANY])

    def check(trial: Trial, scenario: Any) -> None:
        judge.values_equal(*trial.run_and_expect(scenario), headline)

    return replace(law, check=check, only_on={})


def _name(broken: LawBroken) -> str:
    scenario, difference = broken.scenario, broken.difference
    if difference is None:
        kinds = {error.kind for error in errors_of(broken.outcome).values()}
        return COLLECTIVES if kinds & {"mismatch", "deadlock"} else ANY
    place, quantity = difference.place, difference.quantity
    if quantity in ("parameter", "buffer") and place < 0:
        return START if quantity == "parameter" else BUFFERS
    if quantity == "norm":
        return CLIPPING
    if quantity == "gradient" and not scenario.has(Step, SaveAndLoad, Load, Evaluate):
        local = any(not batch.synchronize for batch in scenario.microbatches)
        return ACCUMULATION if local else MEAN
    return ANY
