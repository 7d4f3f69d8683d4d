"""P2: the divisor of a gradient."""

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from lockstep.oracle.events import Backward, Clip, Step, Unscale
from lockstep.oracle.model import LossScale
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.expected import is_exact
from lockstep.properties.judging import judge
from lockstep.properties.law import law
from lockstep.properties.strategies import exact_scenarios
from lockstep.properties.strategies.scenarios import those_there_are
from lockstep.properties.strategies.throughout import with_caller
from lockstep.properties.strategies.variants import is_alike_on_one_rank, on_one_rank, with_one_rank_alike
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial

MOST_DOUBLINGS = 8


def shared_in_two_ways(claims: Claims) -> st.SearchStrategy[tuple[Scenario, Scenario]]:
    """Two scenarios with the same samples, one or two for each rank, on different numbers of ranks."""
    given = st.tuples(with_one_rank_alike(claims), st.booleans(), st.integers(0, 7))
    pairs = given.map(lambda drawn: shared(*drawn, claims.most_ranks))
    pairs = pairs.filter(lambda pair: not any(beyond(claims, one) for one in pair))
    return pairs.filter(lambda pair: all(is_exact(one, claims) for one in pair))


def shared(scenario: Scenario, twice: bool, which: int, most_ranks: int) -> tuple[Scenario, Scenario]:
    """A scenario, with ``twice`` as many samples, and the same samples on another number of ranks."""
    one = scenario.with_each(Backward, lambda batch: (replace(batch, orders=batch.orders * (1 + twice)),))
    sharers = [ranks for ranks in range(1, most_ranks + 1) if one.samples % ranks == 0 and ranks != one.world_size]
    return one, replace(on_one_rank(one), world_size=(sharers or [1])[which % max(len(sharers), 1)])


def shared_once(claims: Claims, scenario: Scenario) -> tuple[Scenario, Scenario] | None:
    """A scenario of the general draw, and its samples on another number of ranks."""
    if not is_exact(scenario, claims) or not is_alike_on_one_rank(scenario, claims):
        return None
    one, other = shared(scenario, False, scenario.world_size, claims.most_ranks)
    return (one, other) if one == scenario and not beyond(claims, other) and is_exact(other, claims) else None


@law("P2", shared_in_two_ways, made_of=shared_once, share=0.35)
def test_how_many_ranks_share_the_samples_does_not_matter(trial: Trial, pair: tuple[Scenario, Scenario]) -> None:
    """The same samples, shared evenly by another number of ranks, give the same gradients and parameters.

    Why: the divisor is the number of samples, however it is composed: ranks, samples per rank, pre- and post-division.

    Broken by dividing twice, by integer division, by the size of another group: pytorch/torchtitan#2323,
    meta-pytorch/torchtune#2172, deepspeedai/DeepSpeed#6545.
    """
    one, other = (trial.run(scenario) for scenario in pair)
    ranks = [scenario.world_size for scenario in pair]
    judge.runs_equal(one, other, f"The same samples give other gradients on {ranks[0]} ranks than on {ranks[1]}.")


def with_scaled_loss(claims: Claims) -> st.SearchStrategy[tuple[Scenario, Scenario]]:
    """A scenario without steps with a loss scale of 1, and with a larger one; in some the loss is mirrored too."""
    given = st.tuples(exact_scenarios(claims, enclosed=False), st.integers(1, MOST_DOUBLINGS), st.booleans())
    pairs = given.map(lambda drawn: scaled(*drawn))
    return pairs.filter(lambda pair: all(is_exact(one, claims) for one in pair))


def scaled(scenario: Scenario, doublings: int, mirrored: bool) -> tuple[Scenario, Scenario]:
    """The pair of such scenarios. Steps and clipping are left out, because their results do not scale.

    ``mirrored``: all contributions are positive in the first, negative in the second. Both have a loss scale, since
    `oracle.fingerprint` chooses other numbers if there is one.
    """
    kept = tuple(event for event in scenario.program if type(event) not in (Clip, Step, Unscale))
    plain = replace(scenario, program=kept, loss_scale=LossScale(1.0))
    plain = plain.with_each(Backward, lambda batch: (replace(batch, overflow=()),))
    larger = replace(plain, loss_scale=LossScale(2.0**doublings))
    return (replace(plain, signs="positive"), replace(larger, signs="negative")) if mirrored else (plain, larger)


@law("P2", with_scaled_loss)
def test_gradients_scale_with_the_loss(trial: Trial, pair: tuple[Scenario, Scenario]) -> None:
    """A loss 2^k or -2^k times as large gives gradients 2^k or -2^k times as large, bit for bit.

    Why: the mean is linear, and multiplying by a power of two does not round. So no constant, clamp or threshold may be
    part of it. This law needs no oracle.

    Broken by gradients that are clipped in every micro-batch: tenstorrent/tt-metal#17568.
    """
    one, other = (trial.run(scenario) for scenario in pair)
    assert pair[1].loss_scale
    factor = pair[1].loss_scale.initial * (1 if pair[0].signs == pair[1].signs else -1)
    judge.runs_equal(other, one, f"A loss {factor:g} times as large does not scale gradients by that.", factor)


def with_hooks(claims: Claims, what: str) -> st.SearchStrategy[Scenario]:
    """A scenario without steps, with hooks of the caller of the kind ``what``, which is exact with and without them.

    The hooks may be registered before wrapping. No parameter is replaced or trained later, because it would have no
    hook.
    """
    stays = replace(claims, freezing=False, replaced_parameters=False)
    plain = st.one_of(*(exact_scenarios(stays, has=has, enclosed=False) for has in ((), ("units",))))

    def hooked(scenario: Scenario, doublings: int, before: bool) -> Scenario | None:
        plain, _ = scaled(scenario, doublings, mirrored=False)
        return with_caller(plain, hooked_before=before, **{what: doublings})

    drawn = those_there_are(st.builds(hooked, plain, st.integers(1, MOST_DOUBLINGS), st.booleans()))
    return drawn.filter(lambda scenario: all(is_exact(one, claims) for one in (scenario, without_hooks(scenario))))


def without_hooks(scenario: Scenario) -> Scenario:
    """The scenario without hooks of the caller that change gradients."""
    return replace(scenario, caller=replace(scenario.caller, hooked=0, module_hooked=0, hooked_before=False))


@law("P2", partial(with_hooks, what="hooked"), needs=lambda claims: claims.callers_hooks)
def test_a_hook_of_the_callers_on_a_parameter_counts(trial: Trial, scenario: Scenario) -> None:
    """A caller's hook that multiplies the gradient of a parameter by 2^k multiplies its mean by 2^k.

    Why: such hooks mask, reverse and clip gradients one by one, and autograd accumulates their results. This law needs
    no oracle.

    Broken by the wrapper's hooks that take a gradient before the caller's have seen it. Broken where another tensor is
    trained than the caller sees, as in FSDP2: meta-pytorch/torchrec#4268.
    """
    one, other = trial.run(without_hooks(scenario)), trial.run(scenario)
    factor = 2.0**scenario.caller.doublings
    judge.runs_equal(other, one, "A hook of the caller's on a parameter does not count.", factor)


def with_hooks_on_the_model(claims: Claims) -> st.SearchStrategy[Scenario]:
    """The same with hooks on the model.

    The whole loss is its output, because hooks do not see a loss that the caller computes.
    """
    return with_hooks(replace(claims, losses_read=False, double_backward=False), what="module_hooked")


@law("P2", with_hooks_on_the_model, needs=lambda claims: claims.module_hooks)
def test_a_hook_of_the_callers_on_the_model_counts(trial: Trial, scenario: Scenario) -> None:
    """A caller's hook on the model that multiplies each loss by 2^k multiplies gradients by 2^k. Hooks on its modules
    run too: before and after forward, and before backward. A hook before a module's forward sees the module's whole
    parameters.

    Why: other code changes a model by hooks, as torch's own `spectral_norm` does. They run where a module is called,
    not where its `forward` is. This law needs no oracle.

    Broken by wrappers that call `forward` directly: NVIDIA/Megatron-LM#5789.
    """
    one, other = trial.run(without_hooks(scenario)), trial.run(scenario)
    factor = 2.0**scenario.caller.doublings
    judge.runs_equal(other, one, "A hook of the caller's on the model, or on a module of it, does not count.", factor)


def on_two_meshes(claims: Claims) -> st.SearchStrategy[tuple[Scenario, Scenario]]:
    """A scenario with several replicas of the shards, if possible, and with one."""

    def pairs(scenario: Scenario) -> st.SearchStrategy[tuple[Scenario, Scenario]]:
        ranks = scenario.world_size
        shapes = [replicas for replicas in range(2, ranks + 1) if ranks % replicas == 0] or [1]
        meshes = st.sampled_from(shapes).map(lambda replicas: replace(scenario, replicas=replicas))
        return st.tuples(meshes, st.just(replace(scenario, replicas=1)))

    whole = replace(claims, subgroups=False)  # replicas need the whole world
    return exact_scenarios(whole, enclosed=False).flatmap(pairs)


@law("P2", on_two_meshes, needs=lambda claims: claims.replicas)
def test_the_shape_of_the_mesh_does_not_matter(trial: Trial, pair: tuple[Scenario, Scenario]) -> None:
    """The same ranks, as other numbers of replicas and shards, give the same gradients and parameters.

    Why: each way of splitting the ranks into two dimensions averages over all of them.

    Broken if one dimension is 1: pytorch/pytorch#154888, pytorch/pytorch#167178.
    """
    one, other = (trial.run(scenario) for scenario in pair)
    words = f"{pair[0].replicas} or {pair[1].replicas} replicas"
    judge.runs_equal(one, other, f"The result changes with the shape of the mesh ({words}).")
