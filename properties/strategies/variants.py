"""Scenarios that several laws make of others: what they compare a run with, or give a module of its own."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Evaluate, Event, Finish, Freeze, Raise, Replace, Step, ZeroGrad
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.expected import is_exact
from lockstep.properties.strategies.scenarios import exact_scenarios, those_there_are
from lockstep.properties.strategies.throughout import with_caller


def without_local(scenario: Scenario) -> Scenario:
    """The same without micro-batches inside `no_sync`; what those used, the next one that synchronizes uses as well.

    So that what an implementation sends may depend on which parameters were used since it last sent.
    """
    kept: list[Event] = []
    nothing: tuple[tuple[int, ...], ...] = ((),) * scenario.samples
    used = nothing
    for event in scenario.program:
        match event:
            case Backward():
                if event.zeroes is not None and not event.synchronize:
                    kept.append(event.zeroes)
                used = nothing if event.meanwhile == "drops gradients" else used
                both = zip(event.orders, used, strict=True)
                used = tuple(tuple(dict.fromkeys((*order, *before))) for order, before in both)
                if not event.synchronize:
                    continue
                event, used = replace(event, orders=used), nothing
            case ZeroGrad(set_to_none=True) | Raise(drops_gradients=True):
                used = nothing
        kept.append(event)
    return replace(scenario, program=tuple(kept))


def asking(drawn: st.SearchStrategy[Scenario], **changes: Any) -> st.SearchStrategy[Scenario]:
    """The scenarios in which the caller can have these habits, with them."""
    return those_there_are(drawn.map(lambda scenario: with_caller(scenario, **changes)))


def one_by_one(scenario: Scenario) -> list[int]:
    """The parameters that are trained, each tensor once."""
    return [index for index, p in enumerate(scenario.parameters) if p.trainable and p.tied is None]


def with_one_unit(scenario: Scenario) -> Scenario:
    """The same, where the last parameter that is trained has a module of its own, and the root has the others."""
    return replace(scenario, units=(tuple(one_by_one(scenario)[-1:]),), outside=())


def with_one_rank_alike(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios that one rank can run as well."""
    return exact_scenarios(claims, enclosed=False).filter(lambda scenario: is_alike_on_one_rank(scenario, claims))


def is_alike_on_one_rank(scenario: Scenario, claims: Claims) -> bool:
    """True if one rank with all samples must have the same: an overflow of some ranks is not one of the whole batch.

    And coefficients of the whole batch may cancel where no rank's do: times a negative weight, zero is -0.0.
    """
    if any(batch.overflow for batch in scenario.microbatches):
        return False
    return is_exact(on_one_rank(scenario), claims)


def on_one_rank(scenario: Scenario) -> Scenario:
    """The same scenario with all samples on one rank, whose every error is everybody's."""
    program = tuple(event.on_one_rank() for event in scenario.program)
    return scenario.on_ranks(1, program=program)


def trained_again(
    scenario: Scenario, instead: bool = False, local: bool = False, everything: bool = False, steps: bool = False
) -> Scenario:
    """The same, and in the end everything that was trained when it was last wrapped is trained once more, or
    ``everything`` there is; ``instead``: as many tensors that are trained until then no longer are; ``local``: a
    micro-batch inside `no_sync` comes first; ``steps``: and a step comes last.
    """
    end = scenario.standings[-1]
    trained, when_wrapped = end.trained, frozenset(range(len(scenario.parameters))) if everything else end.when_wrapped
    thaw, still = ({scenario.tensor(index) for index in which} for which in (when_wrapped - trained, trained))
    if not thaw:
        return scenario
    freeze = sorted(still)[: len(thaw)] if instead else []
    names = range(len(scenario.parameters))
    reached = tuple(index for index in names if scenario.tensor(index) in (still | thaw).difference(freeze))
    again: list[Event] = [ZeroGrad(), *([Freeze(tuple(freeze))] if freeze else []), Freeze(tuple(sorted(thaw)), False)]
    batch = Backward((reached,) * scenario.samples)
    again += [*([replace(batch, synchronize=False)] * local), batch, Finish(), *([Step()] * steps)]
    return replace(scenario, program=(*scenario.program, *again))


def replaced_again(scenario: Scenario, times: int = 4) -> Scenario:
    """The same, and in the end a tensor that is trained is replaced so many times, with a window after each."""
    trained = scenario.standings[-1].trained
    names = tuple(index for index in range(len(scenario.parameters)) if index in trained)
    if not names:
        return scenario
    window = (ZeroGrad(), Replace((scenario.tensor(names[-1]),)), Backward((names,) * scenario.samples), Finish())
    return replace(scenario, program=(*scenario.program, *window * times))


def evaluated_after_errors(scenario: Scenario) -> Scenario:
    """The same, with an evaluation right after each error of the caller's."""
    return scenario.with_each(Raise, lambda error: (error, Evaluate()))
