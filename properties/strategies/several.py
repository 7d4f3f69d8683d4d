"""Scenarios in which a micro-batch has several forwards, several backwards, or a loss that the caller makes."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.events import Backward
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import BACKWARDS, Claims
from lockstep.properties.strategies.combined import with_any
from lockstep.properties.strategies.moments import altered, one_or_all
from lockstep.properties.strategies.scenarios import comparable


def with_several(scenario: Scenario, which: int, form: tuple[int, int], local: bool = False) -> Scenario:
    """The scenario with several forwards and backwards in some micro-batches, chosen by the bits of ``which``.

    ``local``: change only micro-batches inside `no_sync`.
    """
    forwards, backwards = form
    chosen = [batch for batch in range(len(scenario.microbatches)) if which >> batch & 1] or [0]
    several = {
        place: replace(batch, forwards=forwards, backwards=backwards)
        for number, (place, batch) in enumerate(scenario.events(Backward))
        if number in chosen
        and not (local and batch.synchronize)
        # Otherwise it would not be defined before which forward buffers are broadcast.
        and not (forwards > 1 and scenario.broadcast_buffers and scenario.standings[place].local and batch.synchronize)
    }
    program = tuple(several.get(place, event) for place, event in enumerate(scenario.program))
    return replace(scenario, program=program)


def with_losses(claims: Claims, losses: Sequence[str]) -> st.SearchStrategy[Scenario]:
    """Scenarios with any two features, or with accumulation, in which one micro-batch or all have such a loss.

    Hooks on modules are left out, because they do not see a loss that the caller computes.
    """
    claims = replace(claims, module_hooks=False)
    local = [("accumulation",)] * claims.accumulation
    # All drawn in the same way, so that examples shrink to the first.
    drawn = st.one_of(*(with_any(claims, 2, has=has) for has in ((), *local)))
    places = drawn.map(lambda scenario: (scenario, one_or_all(scenario.places(Backward))))
    chosen = places.flatmap(lambda pair: st.tuples(st.just(pair[0]), st.sampled_from(pair[1])))
    return st.builds(lambda pair, loss: altered(*pair, loss=loss), chosen, st.sampled_from(losses))


def after_two_forwards(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any two features, in which some backwards follow two forwards each, or three."""
    # In a join, ranks without batches left shadow every forward of the others.
    drawn, forms = with_any(replace(claims, joins=()), 2), st.sampled_from([(2, 1), (2, 1), (3, 1)])
    made = st.builds(with_several, drawn, st.integers(0, 255), forms)
    return made.filter(lambda scenario: any(batch.forwards > 1 for batch in scenario.microbatches))


def with_several_backwards(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Scenarios with any two features, in which some micro-batches run backward two or three times."""
    local = claims.backwards != BACKWARDS[-1]
    forms = [(1, 2), (1, 2), (1, 3)] + [(2, 2), (2, 2), (3, 3)] * claims.several_forwards
    drawn = with_any(replace(claims, joins=()), 2, ("accumulation",) * local)
    made = st.builds(with_several, drawn, st.integers(0, 255), st.sampled_from(forms), st.just(local))
    several = made.filter(lambda scenario: any(batch.backwards > 1 for batch in scenario.microbatches))
    return several.filter(lambda scenario: comparable(scenario, claims) is not None)
