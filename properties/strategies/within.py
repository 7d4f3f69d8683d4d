"""Whether a scenario keeps to what is claimed: the last look at what is about to run, drawn or made by a law from what
was drawn. Whoever is held to more than they claim gets a false alarm.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, pairwise

from lockstep.oracle.events import (
    Backward,
    Clip,
    Evaluate,
    Finish,
    Join,
    Raise,
    SaveAndLoad,
    Step,
    Unscale,
)
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import BACKWARDS, EQUAL_FROM, MASTERS, Claims
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.models import called_alike

# What takes up gradients that are there.
READS = (Backward, Unscale, Clip, Step)


def beyond(claims: Claims, scenario: Scenario) -> str:
    """What the scenario asks for that is not claimed, in a few words; empty where there is nothing."""
    for name, feature in FEATURES.items():
        if not feature.claimed(claims) and feature.occurs(scenario):
            return name
    parameters = scenario.parameters
    if claims.wire_dtype and scenario.wire != claims.wire_dtype:
        return f"gradients that need not fit {claims.wire_dtype}"
    if scenario.world_size + scenario.outsiders > claims.most_ranks:
        return f"more than {claims.most_ranks} ranks"
    if len({parameter.dtype for parameter in parameters}) > 1 and not claims.several_dtypes:
        return "several dtypes"
    if any(parameter.dtype == "float64" for parameter in parameters) and not claims.float64:
        return "parameters in float64"
    if not claims.adds_to_averages and on_averages(scenario):
        return "what is synchronized on top of what was synchronized before"
    if not claims.outlive_steps and reads_after_steps(scenario, lambda place: True):
        return "gradients that have been stepped"
    if any(batch.forwards > 1 for batch in scenario.microbatches) and not claims.several_forwards:
        return "several forwards before a backward"
    if any(batch.backwards > 1 for batch in scenario.microbatches) and claims.backwards is None:
        return "several backwards"
    if several_at_once(scenario) and claims.backwards != BACKWARDS[-1]:
        return "several backwards that synchronize"
    if any(parameter.shape == () for parameter in parameters) and not claims.scalars:
        return "scalars"
    if scenario.broadcast_buffers and claims.buffers != "each":
        return "buffers broadcast before each forward"
    if scenario.masters and claims.stage is not None and not claims.masters:
        return "masters of a sharded optimizer"
    if claims.masters == MASTERS and not scenario.masters and FEATURES["16 bits"].occurs(scenario):
        return "16 bits without masters"
    for event in scenario.program:
        if isinstance(event, Raise) and not event.synchronize and not claims.accumulation:
            return "an error inside no_sync"
        evaluates = claims.evaluates if isinstance(event, Raise) and event.synchronize else claims.measures_losses
        if isinstance(event, Raise) and event.where == "evaluation" and not evaluates:
            return "an error in an evaluation"
        if isinstance(event, Join) and event.divide_by not in claims.joins:
            return f"joins that divide by the {event.divide_by}"
    if claims.equal_from != EQUAL_FROM[0] and not _begins_with_forwards(scenario):
        return "something else than a forward right after construction"
    if claims.equal_from != EQUAL_FROM[0] and not scenario.broadcast_buffers and _saves_buffers(scenario):
        return "buffers of each rank's own that are saved, where the first forward may make them rank 0's"
    if not claims.hook_order and hook_orders_differ(scenario):
        return "different hook orders"
    if claims.stage == 3 and scenario.units and not called_alike(scenario):
        return "units that not all ranks call in one order"
    if not claims.unfreezing and _trains_what_was_frozen(scenario):
        return "training what was frozen when it was wrapped"
    return ""


def hook_orders_differ(scenario: Scenario) -> bool:
    """Whether in some micro-batch two ranks reach two parameters that both of them use in different orders."""
    return any(_reached_apart(scenario, batch) for batch in range(len(scenario.microbatches)))


def _reached_apart(scenario: Scenario, batch: int) -> bool:
    """Whether two ranks reach two parameters that both of them use in different orders."""
    for one, other in combinations((scenario.order(batch, rank) for rank in range(scenario.world_size)), 2):
        places = [other.index(parameter) for parameter in one if parameter in other]
        if any(second < first for first, second in pairwise(places)):
            return True
    return False


def on_averages(scenario: Scenario) -> list[int]:
    """The places of the micro-batches whose gradients add to averages that nobody has dropped or zeroed."""
    found, averaged = [], False
    for place, event in enumerate(scenario.program):
        match event:
            case Backward() if averaged:
                found.append(place)
            case Finish():
                averaged = True
            case _ if event.ends_gradients:
                averaged = False
    return found


def several_at_once(scenario: Scenario) -> list[int]:
    """The places of the micro-batches of which several backwards synchronize."""
    return [
        place
        for place, event in enumerate(scenario.program)
        if isinstance(event, Backward) and event.synchronize and event.backwards > 1
    ]


def after_local(scenario: Scenario) -> Iterator[int]:
    """The places of the micro-batches that follow one inside `no_sync`."""
    local = False
    for place, event in enumerate(scenario.program):
        if isinstance(event, Backward):
            if local:
                yield place
            local = not event.synchronize


def _begins_with_forwards(scenario: Scenario) -> bool:
    """Whether the first thing that ranks do once they are constructed, or a file is loaded, is a forward on each."""
    return all(
        isinstance(event, Backward | Evaluate)
        for before, event in pairwise((SaveAndLoad(), *scenario.program))
        if isinstance(before, SaveAndLoad)
    )


def _saves_buffers(scenario: Scenario) -> bool:
    return bool(scenario.buffers) and scenario.has(SaveAndLoad)


def reads_stepped_gradients(scenario: Scenario) -> bool:
    """Whether gradients count on after a step with Nesterov's momentum, in which torch's foreach form adds to them."""

    def adds(place: int) -> bool:
        return any(getattr(options, "nesterov", False) for options in scenario.standings[place].settings)

    return reads_after_steps(scenario, adds)


def reads_after_steps(scenario: Scenario, which: Callable[[int], bool]) -> bool:
    """Whether gradients count on after some step of theirs, of those of which one asks by their place."""
    everything = {*range(len(scenario.groups) + 1)}
    stepped: set[int] = set()  # groups
    for place, event in enumerate(scenario.program):
        match event:
            case Step():
                of = everything if event.groups is None else {*event.groups}
                if stepped & of:
                    return True
                stepped |= of if scenario.standings[place].gradients and which(place) else set()
            case _ if stepped and isinstance(event, READS):
                return True
            case _ if event.ends_gradients:
                stepped = set()
    return False


def _trains_what_was_frozen(scenario: Scenario) -> bool:
    """Whether a parameter is trained that was frozen when the model was wrapped last."""
    return any(not trained <= when_wrapped for trained, when_wrapped in trained_parameters(scenario))


def trained_parameters(scenario: Scenario) -> Iterator[tuple[set[int], set[int]]]:
    """At the start and after each event, which parameters are trained, and which were when the model was wrapped last.

    Indices, of every name of a tensor.
    """
    for standing in scenario.standings:
        yield {*standing.trained}, {*standing.when_wrapped}
