"""Scenarios that several laws derive from others, for example to compare their runs."""

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
    """The scenario without the micro-batches inside `no_sync`.

    The next synchronizing one also uses their parameters. So the set of parameters used since the last synchronization
    stays the same, and an implementation may depend on it.
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
    """The scenarios with these habits of the caller, if they can have them."""
    return those_there_are(drawn.map(lambda scenario: with_caller(scenario, **changes)))


def one_by_one(scenario: Scenario) -> list[int]:
    """The indices of the trainable parameters, each tensor once."""
    return [index for index, p in enumerate(scenario.parameters) if p.trainable and p.tied is None]


def with_one_unit(scenario: Scenario) -> Scenario:
    """The scenario with the last trainable parameter in a unit of its own and the others in the root."""
    return replace(scenario, units=(tuple(one_by_one(scenario)[-1:]),), outside=())


def with_one_rank_alike(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios that give the same results on one rank."""
    return exact_scenarios(claims, enclosed=False).filter(lambda scenario: is_alike_on_one_rank(scenario, claims))


def is_alike_on_one_rank(scenario: Scenario, claims: Claims) -> bool:
    """True if one rank with all samples must give the same results.

    An overflow on some ranks is not an overflow of the whole batch. Coefficients of the whole batch may cancel even if
    those of each rank do not. Then a zero times a negative weight is -0.0.
    """
    if any(batch.overflow for batch in scenario.microbatches):
        return False
    return is_exact(on_one_rank(scenario), claims)


def on_one_rank(scenario: Scenario) -> Scenario:
    """The scenario with all samples on one rank. An error of any rank is an error of this one."""
    program = tuple(event.on_one_rank() for event in scenario.program)
    return scenario.on_ranks(1, program=program)


def trained_again(
    scenario: Scenario, instead: bool = False, local: bool = False, everything: bool = False, steps: bool = False
) -> Scenario:
    """The scenario followed by a window in which everything that was trainable at the last wrapping is trained again.

    - ``everything``: train all parameters instead.
    - ``instead``: freeze as many tensors that were trainable until then.
    - ``local``: put a micro-batch inside `no_sync` first.
    - ``steps``: add a step at the end.
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
    """The scenario followed by so many windows, each after replacing a trainable tensor."""
    trained = scenario.standings[-1].trained
    names = tuple(index for index in range(len(scenario.parameters)) if index in trained)
    if not names:
        return scenario
    window = (ZeroGrad(), Replace((scenario.tensor(names[-1]),)), Backward((names,) * scenario.samples), Finish())
    return replace(scenario, program=(*scenario.program, *window * times))


def evaluated_after_errors(scenario: Scenario) -> Scenario:
    """The scenario with an evaluation right after each error of the caller."""
    return scenario.with_each(Raise, lambda error: (error, Evaluate()))
