"""The strategies of the laws: scenarios within the claims, with values that the oracle knows or can enclose."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import factorial

from hypothesis import strategies as st

from lockstep.oracle.expectation import Expectation
from lockstep.oracle.fingerprint import runs_needed, terms
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import MODES, SIGNS
from lockstep.oracle.state import Inside
from lockstep.properties.claims import Claims
from lockstep.properties.events import general_draw
from lockstep.properties.events.backward import after_local, on_averages, several_at_once
from lockstep.properties.events.clip import clipping_at_the_norm
from lockstep.properties.events.facet import Feature
from lockstep.properties.events.join import JOIN
from lockstep.properties.events.loop import Kind, Loop, Phase, RankSeed
from lockstep.properties.events.options import APART, CALLERS, OPTIONS
from lockstep.properties.events.raise_error import RAISES_DRAWN
from lockstep.properties.expected import known
from lockstep.properties.strategies import models
from lockstep.properties.strategies.features import FEATURES, wanted
from lockstep.properties.strategies.models import MOST_PARAMETERS, Options
from lockstep.properties.strategies.programs import written
from lockstep.properties.strategies.throughout import throughout
from lockstep.properties.strategies.training import training

MOST_RANKS = 8
MOST_PHASES = 8
MOST_OPTIONS = 3
# The largest numbers of forms: hyper-parameters to set, and places to raise in.
TWISTS, SHIFTS = 8, len(RAISES_DRAWN)
ENCLOSED = ("adam", "long rate")

# Ranks, events and options are drawn as separate lists. Each list shrinks by dropping any element, and the rest keeps
# its meaning. The elements are tuples, which Hypothesis draws in half the time of objects.
_RANKS = st.lists(
    st.tuples(st.integers(0, factorial(MOST_PARAMETERS) - 1), st.integers(0, 2**MOST_PARAMETERS - 1)),
    min_size=2,
    max_size=MOST_RANKS,
)
# The number of drawn ranks to leave out. 8 ranks, which are drawn most, and 4 become fewer, because powers of two hide
# faults. A single rank shows wrong shortcuts.
_CROWD = st.sampled_from((0,) * 4 + (1,) * 3 + (2,) * 4 + (3,) * 2 + (MOST_RANKS - 1,) * 2)
_NUMBERS = st.integers(0, 11)
_BOOLEANS = st.booleans()
_PLACES = st.integers(0, MOST_PHASES)  # a relative place among the phases
# The key: whether the feature is wanted.
_SIGNS = {False: st.sampled_from((SIGNS[0],) * 4 + SIGNS[1:]), True: st.sampled_from(SIGNS[1:])}
_MODES = {False: st.sampled_from((MODES[0],) * 7 + MODES[1:]), True: st.sampled_from(MODES[1:])}
_RATES = st.sampled_from((0.5, 0.25, 1.0))


@lru_cache
def _phases(claims: Claims) -> st.SearchStrategy[list[tuple[Kind, int, int]]]:
    return st.lists(
        st.tuples(st.sampled_from(general_draw(claims)), st.integers(0, TWISTS - 1), st.integers(0, SHIFTS - 1)),
        max_size=MOST_PHASES,
    )


@lru_cache
def _options(claims: Claims, enclosed: bool) -> st.SearchStrategy[list[tuple[str, int]]]:
    there = [name for name, claimed in OPTIONS.items() if name in CALLERS or (claimed(claims) and name not in APART)]
    names = [name for name in there if enclosed or name not in ENCLOSED]
    return st.lists(st.tuples(st.sampled_from(names), _NUMBERS), max_size=MOST_OPTIONS)


def exact_scenarios(
    claims: Claims, hook_orders: str = "any", has: Sequence[str] = (), enclosed: bool = True
) -> st.SearchStrategy[Scenario]:
    """Scenarios of which the oracle knows every bit or, if ``enclosed``, a proved interval.

    ``has``: names of features (`properties.strategies.features`) that each scenario must have. Ranks run out of
    micro-batches only if a wanted feature needs a join, because most laws compare values that such a rank does not
    have. Laws that compare two runs bit for bit use ``enclosed=False``. Raises ValueError for a feature that does not
    exist or is not claimed.
    """
    features = tuple(wanted(tuple(has), claims, enclosed))
    if not any(JOIN in feature.phases for feature in features):
        claims = replace(claims, joins=())

    def of_use(scenario: Scenario) -> bool:
        if not all(feature.occurs(scenario) for feature in features):
            return False
        if claims.plain_layers and not models.called_alike(scenario, in_layers=True):
            return False
        expected = comparable(scenario, claims)
        return expected is not None and (enclosed or expected.exact)

    return scenarios(claims, hook_orders, features, enclosed).filter(of_use)


def comparable(scenario: Scenario, claims: Claims) -> Expectation | None:
    """The expectation of a scenario. None if the oracle does not know it, or if other results are right as well."""
    expected = known(scenario, claims)
    if expected is None or adds_up_rounded_means(scenario, expected, not claims.silent_no_sync):
        return None
    return expected


def adds_up_rounded_means(scenario: Scenario, expected: Expectation, eager: bool = False) -> bool:
    """True if the result depends on whether gradients are added before or after averaging, because a mean is rounded.

    This may happen if a gradient is averaged on top of an earlier average, or with several backwards. With ``eager``,
    it also happens if micro-batches inside `no_sync` may be averaged one by one. The oracle adds to the average and
    then takes the mean. An implementation may add the mean of the new gradients instead, which is right too. Both agree
    only if nothing is rounded.
    """
    places = [*on_averages(scenario), *several_at_once(scenario), *(after_local(scenario) if eager else ())]
    means = [expected.gradients[place + 1] for place in places if place + 1 in expected.gradients]
    return any(isinstance(value, Inside) for mean in means for value in mean)


@st.composite
def scenarios(
    draw: st.DrawFn,
    claims: Claims,
    hook_orders: str = "any",
    features: tuple[Feature, ...] = (),
    enclosed: bool = True,
) -> Scenario:
    """A scenario within the claims.

    ``hook_orders``: "any" draws one order for each rank, "same on all ranks" one for all.
    """
    crowd = _crowd(draw(_RANKS), draw(_CROWD))[: claims.most_ranks]
    if claims.parameters_per_rank:
        crowd = crowd[: max(1, MOST_PARAMETERS // claims.parameters_per_rank)]
    options = _options_drawn(draw, claims, features, enclosed)
    ranks = _ranks(crowd, options, claims, hook_orders)
    if claims.idle_ranks:
        ranks = _idle(ranks, FEATURES["idle rank"] in features, draw)
    least = max((feature.parameters for feature in features), default=1)
    least = max(least, claims.parameters_per_rank * len(ranks))
    model = models.model(models.ModelSeed(*draw(models.model_seeds(least))), options, claims, len(ranks))
    quadratic = FEATURES["quadratic"] in features or draw(_BOOLEANS)
    rate, signs = draw(_RATES), draw(_SIGNS[FEATURES["signs"] in features])
    mode = draw(_MODES[FEATURES["eval mode"] in features]) if claims.eval_mode else MODES[0]
    cap = draw(models.bucket_caps(model, "cap" in options)) if claims.bucket_cap else None
    phases = [Phase(*each) for each in draw(_phases(claims))]
    for feature in features:
        phases = _with(phases, feature.phases, draw)
    phases, options, ruled_out = _together(phases, options, claims)
    keeps = (claims.stage is None or claims.masters) if "masters" not in ruled_out else False
    caller = training(options, model, not enclosed, keeps, stateless="momentum" in ruled_out)
    buffers = models.buffers(options)
    broadcasts = bool(buffers) and claims.buffers == "each"
    loop = Loop(claims, ranks, model, caller, not enclosed, broadcasts)
    program = written(loop, phases)
    linear = any(getattr(event, "overflow", ()) for event in program)
    units = models.units(options, len(model))
    scenario = Scenario(
        len(ranks),
        model,
        program,
        probe="quadratic" if quadratic and not linear else "linear",
        bucket_cap=cap,
        learning_rate=rate,
        optimizer=caller.optimizer,
        hyperparameters=caller.hyperparameters,
        groups=caller.groups,
        masters=caller.masters,
        loss_scale=caller.loss_scale,
        buffers=buffers,
        broadcast_buffers=broadcasts,
        units=units,
        outside=models.outside(options, units),
        replicas=models.replicas(options, len(ranks)),
        outsiders=models.outsiders(options, len(ranks), claims.most_ranks),
        signs=signs,
        mode=mode,
        wire=claims.wire_dtype or "",
    )
    if claims.stage == 3 and scenario.units and not models.called_alike(scenario):
        scenario = replace(scenario, units=(), outside=())
    scenario = throughout(_thinned_out(scenario, options), options, claims)
    if claims.plain_layers and scenario.probe == "quadratic" and not _of_positive_gradients(scenario):
        scenario = replace(scenario, probe="linear")
    return clipping_at_the_norm(scenario, loop.clips_at, claims) if loop.clips_at else scenario


def _options_drawn(draw: st.DrawFn, claims: Claims, features: tuple[Feature, ...], enclosed: bool) -> Options:
    """The drawn options, and those that the features need."""
    options: Options = dict(draw(_options(claims, enclosed)))
    for name in (name for feature in features for name in feature.options):
        options.setdefault(name, draw(_NUMBERS))
    if "outsiders" in options:
        options.pop("replicas", None)  # replicas need the whole world
    return options


def _ranks(crowd: list[tuple[int, int]], options: Options, claims: Claims, hook_orders: str) -> list[RankSeed]:
    """The drawn ranks, reduced to the number that the options and claims allow."""
    ranks = [RankSeed(*each) for each in crowd]
    if "outsiders" in options:
        ranks = ranks[: claims.most_ranks - 1]
    if not models.dtypes(len(ranks), claims, options.get("16 bits")):
        ranks = ranks[:-1]
    units = options.get("units", options.get("outside"))
    gathered = claims.stage == 3 and units is not None
    if hook_orders != "any" or not claims.hook_order or gathered:
        ranks = [replace(rank, order=ranks[0].order) for rank in ranks]
    if claims.plain_layers or (units is not None and gathered and units // 4 % 4):  # all ranks call the same units
        ranks = [replace(rank, absent=ranks[0].absent) for rank in ranks]
    return ranks


def _idle(ranks: list[RankSeed], wanted: bool, draw: st.DrawFn) -> list[RankSeed]:
    """Let ranks use no parameter in some micro-batches: one of several ranks, or all but one.

    This happens if it is ``wanted``, or if the last rank is drawn without any parameter, which is rare.
    """
    if len(ranks) == 1 or (not wanted and ranks[-1].absent != 2**MOST_PARAMETERS - 1):
        return ranks
    number = draw(_NUMBERS) if wanted else ranks[-1].order
    chosen = len(ranks) - 1 - number // 2 % len(ranks)
    return [replace(rank, idle=(place == chosen) != bool(number % 2)) for place, rank in enumerate(ranks)]


def _together(phases: list[Phase], options: Options, claims: Claims) -> tuple[list[Phase], Options, frozenset[str]]:
    """Remove phases and options that exclude one another. The last value names the options that are ruled out."""
    ruled_out = frozenset(name for phase in phases for name in phase.kind.rules_out(claims))
    phases = [phase for phase in phases if ruled_out.isdisjoint(phase.kind.options)]
    taken: Options = {name: 0 for phase in phases for name in phase.kind.options}
    return phases, {name: form for name, form in {**taken, **options}.items() if name not in ruled_out}, ruled_out


def _of_positive_gradients(scenario: Scenario) -> bool:
    """True if no gradient can be -0.0. Torch's layers give no -0.0, because they add up gradients from 0.0."""
    return scenario.signs == SIGNS[0] and scenario.sparse[1] == 1


def _thinned_out(scenario: Scenario, options: Options) -> Scenario:
    """Set some coefficients to zero, because an option says so, or so that sums are exact in 16 bits.

    The 16 bits may be those of the model or of the wire.
    """
    if ("16 bits" in options or scenario.wire) and (runs := runs_needed(scenario)) > 1:
        which = options["16 bits"] // 2 if "16 bits" in options else options.get("zeros", 0)
        return replace(scenario, sparse=(which % runs, runs))
    if "zeros" in options and (runs := terms(scenario)) > 1:
        return replace(scenario, sparse=(options["zeros"] % runs, runs))
    return scenario


def those_there_are(drawn: st.SearchStrategy[Scenario | None]) -> st.SearchStrategy[Scenario]:
    """The strategy without None, which stands for a scenario that could not be made."""
    return drawn.filter(lambda scenario: scenario is not None)  # type: ignore[return-value]


def _crowd(ranks: list[tuple[int, int]], fewer: int) -> list[tuple[int, int]]:
    if fewer == MOST_RANKS - 1:
        return ranks[:1]
    return ranks[: len(ranks) - min(fewer, {4: 1, 8: 3}.get(len(ranks), 0))]


def _with(phases: list[Phase], wanted: tuple[Kind, ...], draw: st.DrawFn) -> list[Phase]:
    """The phases with the wanted ones inserted in their order at some place, unless they are there already."""
    there = iter(phase.kind for phase in phases)
    if all(kind in there for kind in wanted):
        return phases
    place = draw(_PLACES) * (len(phases) + 1) // (MOST_PHASES + 1)
    added = [Phase(kind, draw(_NUMBERS) % TWISTS, draw(_NUMBERS) % SHIFTS) for kind in wanted]
    return [*phases[:place], *added, *phases[place:]]
