"""P18: the number, size and timing of collectives are as promised."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.cost import moved
from lockstep.oracle.events import Backward, Clip, Evaluate, Event, Finish, Freeze, Raise, Replace, Save, Step, ZeroGrad
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.model import Buffer, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import CAP_FROM, EQUAL_FROM, MASTERS, Claims
from lockstep.properties.judging.launches import NOTED, NOTING, overlapping, silent_inside_no_sync
from lockstep.properties.judging.memory import WEIGHED, WEIGHING
from lockstep.properties.judging.traffic import cost_of, elements, passed, reductions
from lockstep.properties.judging.wire import on_the_wire
from lockstep.properties.law import law
from lockstep.properties.naming import enumerated
from lockstep.properties.strategies.variants import without_local
from lockstep.properties.trial import SENT, Run, Trial
from lockstep.properties.verdict import SilentlyWrong, Wasteful

# Examples in which ranks must send something, because an implementation that sends nothing would pass otherwise.
_WINDOW = (Backward(((0,), (0,)), False), Backward(((0,), (0,))), Finish(), Step(), ZeroGrad())
LOCAL = Scenario(2, (Parameter((1,)),), _WINDOW)
ONCE = Scenario(2, (Parameter((1,)),), _WINDOW[1:])
PADDING = 128  # elements; Megatron pads to so many for each rank, other frameworks to 16 bytes
LEARNS = 2  # steps after which buckets do not change any more
SHORT, LONG = (2, 2), (5, 5, 5)  # further steps, in pieces that are compared
SIZES = st.lists(st.sampled_from((1, 2, 3, 5, 7, 16)), min_size=1, max_size=4)
FOR_SEVERAL_BUCKETS = st.lists(st.sampled_from((3, 7, 16)), min_size=3, max_size=8)
# Large ones first, so that examples shrink to few.
BEYOND_ONE_BUCKET = st.lists(st.sampled_from((16, 7, 3)), min_size=3, max_size=8)
_ORDERS = ((4, 3, 2, 1, 0),) * 2
SEVERAL = Scenario(2, (Parameter((64,)),) * 5, (Backward(_ORDERS), *_WINDOW[2:]) * (LEARNS + 1), bucket_cap=256)
# If ranks exchange gradients otherwise and add them themselves, these cannot be recognized as gradients.
REDUCED = "every rank reduced something (by an all_reduce, a reduce_scatter or a reduce)"
OVERLAPPED = "two reductions (all_reduce, reduce_scatter or reduce) were launched while backward still ran"
WIDER = 64  # the factor, large enough that flags are fewer than the elements of any parameter


@st.composite
def windows(
    draw: st.DrawFn,
    claims: Claims,
    most_local: int = 2,
    steps: int = 1,
    least: int = 0,
    of_sizes: st.SearchStrategy[list[int]] = SIZES,
    more: Sequence[str] = (),
) -> Scenario:
    """Windows on at least two ranks: micro-batches inside `no_sync`, one that synchronizes, and a step.

    Up to two of the names in ``more`` are used:

        raise, evaluate     an error of the caller, or an evaluation, before the window
        clip                clipping after the window
        save                saving everything after the step
        units               each parameter in a unit of its own
        frozen              a parameter that is frozen from the start
        freeze, replace     a parameter that is frozen or replaced right after wrapping
        in turns            a parameter that is frozen before every other window and trained again after it
    """
    ranks, sizes = draw(st.integers(2, claims.most_ranks)), draw(of_sizes)
    local = draw(st.integers(least, most_local)) if claims.accumulation and claims.silent_no_sync else 0
    at_once = claims.equal_from == EQUAL_FROM[0]  # otherwise a forward must come first
    claimed = {"evaluate": claims.evaluates, "freeze": claims.freezing and at_once}
    claimed |= {"raise": claims.survives_errors and at_once, "save": claims.reloads}
    claimed |= {"replace": bool(claims.replaced_parameters) and at_once, "in turns": claims.freezing and at_once}
    asked = [name for name in more if claimed.get(name, True)]
    chosen = draw(st.sets(st.sampled_from(asked), max_size=2)) if asked else set()
    changed = sorted(chosen & {"frozen", "freeze", "in turns", "replace"})[:1] if len(sizes) > 1 else []
    names = range(changed in (["frozen"], ["freeze"]), len(sizes))
    error = Raise(draw(st.sampled_from(("backward", "forward"))) if "raise" in chosen else "forward", synchronize=True)
    kinds: dict[str, Event] = {"raise": error, "evaluate": Evaluate(), "clip": Clip(1.0), "save": Save()}
    failed, evaluated, clipped, saved = ([event] * (name in chosen) for name, event in kinds.items())

    def window(names: range) -> tuple[Event, ...]:
        batch = Backward((tuple(names),) * ranks)
        batches = [replace(batch, synchronize=False)] * local
        return (*failed, *evaluated, *batches, batch, Finish(), *clipped, Step(), *saved, ZeroGrad())

    other = window(names)
    if changed == ["in turns"]:
        other = (Freeze((0,)), *window(names[1:]), Freeze((0,), frozen=False))
    first: dict[str, Event] = {"freeze": Freeze((0,)), "replace": Replace((len(sizes) - 1,))}
    begin = (first[name] for name in changed if name in first)
    program = (*begin, *(event for step in range(steps) for event in (other if step % 2 else window(names))))
    model = tuple(
        Parameter((size,), trainable=place in names or "frozen" not in changed) for place, size in enumerate(sizes)
    )
    # With these it is not specified when buffers are broadcast next.
    broadcasts = claims.buffers == "each" and not chosen & {"evaluate", "raise"}
    buffers = (Buffer((1,)),) if broadcasts or claims.buffers == "initial" else ()
    units = tuple((place,) for place in range(len(sizes))) if "units" in chosen else ()
    wire = claims.wire_dtype or ""
    return Scenario(ranks, model, program, buffers=buffers, broadcast_buffers=broadcasts, units=units, wire=wire)


def larger(scenario: Scenario) -> Scenario:
    """The scenario with more elements in every parameter, so many for each rank that padding does not change."""
    more = (replace(each, shape=(each.count + PADDING * scenario.world_size,)) for each in scenario.parameters)
    return replace(scenario, parameters=tuple(more))


def wider(scenario: Scenario, cap: int | None) -> Scenario:
    """The scenario with parameters ``WIDER`` times as large, and with a bucket cap for ``cap`` of these elements, if
    any.
    """
    wide = tuple(replace(each, shape=(each.count * WIDER,)) for each in scenario.parameters)
    return replace(scenario, parameters=wide, bucket_cap=cap and cap * WIDER * FORMATS["float32"].bytes)


def backwards(scenario: Scenario) -> Scenario:
    """The scenario with every backward in the reverse order of registration, as in most models."""
    return scenario.with_each(Backward, lambda batch: (batch.with_each_order(lambda order: order[::-1]),))


def most_for_three_buckets(sizes: list[int]) -> int:
    """The largest cap that makes at least three buckets, even if each exceeds it by a parameter."""
    return (sum(sizes) - 2 * max(sizes) - 1) // 2


@st.composite
def in_three_buckets(draw: st.DrawFn, claims: Claims) -> Scenario:
    """Steps until buckets do not change any more, and one more.

    There are at least three buckets or, at stage 3, units.
    """
    sizes = draw(FOR_SEVERAL_BUCKETS.filter(lambda sizes: most_for_three_buckets(sizes) > 0))
    drawn = windows(claims, most_local=1, steps=LEARNS + 1, of_sizes=st.just(sizes), more=("replace",))
    scenario = backwards(draw(drawn))
    cap = draw(st.integers(1, most_for_three_buckets(sizes))) if claims.bucket_cap else None
    mixed = claims.several_dtypes and claims.float64 and draw(st.booleans())
    if cap == 1 and mixed:  # buckets hold one parameter each, so none waits for another dtype
        model = (
            replace(each, dtype=("float32", "float64")[place % 2]) for place, each in enumerate(scenario.parameters)
        )
        scenario = replace(scenario, parameters=tuple(model))
    units = tuple((index,) for index in range(len(sizes))) if claims.stage == 3 else ()
    return replace(wider(scenario, cap), units=units)


@law(
    "P18",
    lambda claims: windows(claims, most_local=6, least=1),
    needs=lambda claims: claims.accumulation and claims.silent_no_sync and claims.most_ranks > 1,
    witnesses={SENT: LOCAL},
)
def test_nothing_is_reduced_inside_no_sync(trial: Trial, scenario: Scenario) -> None:
    """Micro-batches inside `no_sync` call no collective and add no byte to one. Only ZeRO-3 gathers parameters there.

    Why: `no_sync` exists to communicate once for many micro-batches.

    Broken by reducing all the same, and by broadcasting buffers: meta-pytorch/torchrec#4121,
    facebookresearch/fairscale#1049.
    """
    run, without = trial.run(scenario), trial.run(without_local(scenario))
    silent_inside_no_sync(run, without, "Something is sent inside no_sync.")
    told = reductions if trial.claims.stage == 3 else list
    for rank, both in enumerate(zip(run.collectives, without.collectives, strict=True)):
        moves, needs = (passed(told(calls), scenario.world_size) for calls in both)
        if moves > needs:
            words = f"Micro-batches inside no_sync cost something: rank {rank} moves {moves} elements, {needs}"
            raise run.broken(Wasteful, f"{words} without them.")


@st.composite
def priced(draw: st.DrawFn, claims: Claims) -> Scenario:
    """A window in any claimed dtype, as far as claimed with master weights and with replicas of shards."""
    scenario = draw(windows(claims, more=("evaluate", "clip", "frozen")))
    dtype = draw(st.sampled_from(("float32", *("bfloat16",) * claims.sixteen_bits, *("float64",) * claims.float64)))
    model = tuple(replace(each, dtype=dtype) for each in scenario.parameters)
    masters = dtype == "bfloat16" and (claims.masters == MASTERS or (bool(claims.masters) and draw(st.booleans())))
    several = [number for number in range(1, scenario.world_size + 1) if scenario.world_size % number == 0]
    replicas = draw(st.sampled_from(several)) if claims.replicas else 1
    return replace(scenario, parameters=model, masters=masters, replicas=replicas)


@law("P18", priced, needs=lambda claims: claims.cost and claims.most_ranks > 1)
def test_an_element_more_costs_what_the_stage_promises(trial: Trial, scenario: Scenario) -> None:
    """With n more elements, a step moves as many more elements as `oracle.cost.moved` gives for n parameters. The match
    is exact if the schedule is claimed. Otherwise it is that of one of the schedules that the stage allows, or a
    mixture.

    Why: a stage is chosen for its cost: 2 n for data parallelism, ZeRO-1 and ZeRO-2, and up to 3 n for ZeRO-3.

    Several schedules are allowed. ZeRO-1 may all-reduce gradients (3 n). ZeRO-3 may keep gathered units for backward (2
    n to 3 n), and inside `no_sync` for the next forward too. At stage 3 an evaluation gathers at most once more. A norm
    costs nothing that depends on n. A frozen parameter is at most gathered, or published in a step.

    Comparing two sizes leaves out flags and padding, which do not depend on n. Elements that travel in a wider dtype
    than their own, or than the claimed dtype of reductions, count in proportion.

    Broken by reducing twice: horovod/horovod#1099.
    """
    dtype = scenario.parameters[0].dtype
    # Compressed elements count fully, beside uncompressed ones, for example gathered parameters.
    due = dtype if trial.claims.wire_dtype else on_the_wire(dtype, trial.claims)
    few, many = (cost_of(trial.run(each), due) for each in (scenario, larger(scenario)))
    extra = PADDING * scenario.world_size * len(scenario.parameters)
    batches = len(scenario.microbatches)
    least, most = promised(trial.claims, scenario, PADDING * scenario.world_size)
    for rank, (one, other) in enumerate(zip(few.costs, many.costs, strict=True)):
        if not least <= other - one <= most:
            size = f"{extra} elements more, {batches} micro-batch{'es' * (batches > 1)} and a step"
            words = f"{size}: rank {rank} moves {other - one} elements of {due} more"
            right = f"{least}" if least == most else f"{least} to {most}"
            # Elements that are not sent are not added anywhere.
            kind = Wasteful if other - one > most else SilentlyWrong
            raise few.run.broken(kind, f"{words}, where it must be {right}.")


def promised(claims: Claims, scenario: Scenario, more: int) -> tuple[Fraction, Fraction]:
    """The least and most elements that a step may move for so many additional elements of each parameter.

    They differ between schedules, and are counted as by `passed`.
    """
    moving, batches = len(scenario.microbatches[0].orders[0]), len(scenario.microbatches)
    extra, frozen = moving * more, (len(scenario.parameters) - moving) * more
    ranks, replicas = scenario.world_size, scenario.replicas
    shards = ranks // replicas if claims.stage else ranks

    def of(elements: int, micro_batches: int = batches, **how: Any) -> Fraction:
        stage, whole = claims.stage or 0, Fraction(ranks, ranks - 1)
        return whole * moved(stage, elements, shards, ranks // shards, micro_batches, **how)

    ways = {"": of(extra)}
    if claims.stage == 1:
        ways = {"reduce-scatter": ways[""]}
        ways |= {"all-reduce": of(extra, all_reduce_gradients=True)} if replicas == 1 else {}
    if claims.stage == 3:
        ways = {"gather twice": ways[""], "gather once": of(extra, kept=extra)}
        ways["keep in no_sync"] = of(extra, 1, kept=extra)
    counts = [way for name, way in ways.items() if claims.schedule in (None, name)]
    evaluations = len(scenario.places(Evaluate))
    # Frozen parameters may be gathered with stepped ones, or share their buffers and collectives with trained ones.
    with_frozen = (2 * batches + 1) * frozen + evaluations * (extra + frozen)
    beside = {1: frozen, 2: frozen, 3: with_frozen}.get(claims.stage or 0, 0)
    return min(counts), max(counts) + beside


def far_below_the_cap(claims: Claims) -> st.SearchStrategy[Scenario]:
    """Two steps of models with at most some hundred bytes, with the implementation's default cap or one of 64 KiB."""
    drawn = windows(claims, most_local=0, steps=2, more=("units", "freeze", "replace"))
    return st.builds(lambda scenario, cap: replace(scenario, bucket_cap=cap), drawn, st.sampled_from((None, 2**16)))


@law(
    "P18",
    far_below_the_cap,
    needs=lambda claims: claims.cost and claims.bucket_cap and claims.most_ranks > 1,
    witnesses={REDUCED: ONCE},
)
def test_what_fits_into_one_bucket_goes_out_at_once(trial: Trial, scenario: Scenario) -> None:
    """A model far smaller than the bucket cap is reduced in one message in every step. A second message may tell which
    parameters were used.

    Why: each message costs its latency, whatever its size.

    Broken by a count that is not reset, so that every later bucket holds one parameter: deepspeedai/DeepSpeed#7415. A
    recipe: the cap is read in another unit.
    """
    run, steps = trial.run(scenario), 2
    trial.witnessed[REDUCED] += all(map(reductions, run.since_construction))
    for rank, calls in enumerate(run.since_construction):
        if (count := len(reductions(calls))) > 2 * steps:
            size = f"{len(scenario.parameters)} small parameter{'s' * (len(scenario.parameters) > 1)}"
            cap = "no bucket cap" if scenario.bucket_cap is None else f"a bucket cap of {scenario.bucket_cap} bytes"
            words = f"{size} and {cap}: rank {rank} sends {count}"
            raise run.broken(Wasteful, f"{words} reductions in {steps} steps.")


@law(
    "P18",
    lambda claims: st.tuples(
        windows(claims, most_local=0, steps=LEARNS + 1, of_sizes=BEYOND_ONE_BUCKET, more=("freeze", "replace")),
        st.integers(16, 48),
        st.sampled_from(("float32", "float64") if claims.float64 else ("float32",)),
    ),
    needs=lambda claims: claims.bucket_cap and claims.most_ranks > 1,
    witnesses={REDUCED: (replace(ONCE, program=ONCE.program * (LEARNS + 1)), 16, "float32")},
)
def test_no_bucket_exceeds_its_cap_by_more_than_a_parameter(trial: Trial, drawn: tuple[Scenario, int, str]) -> None:
    """No message of gradients is longer than the cap plus the largest parameter, apart from flags and padding.

    Why: a bucket is sent only when it is full, so a cap that is not honored means no overlap. Implementations differ in
    two ways. The last parameter may exceed the cap. The first steps may differ: torch's DDP sends one bucket while it
    learns the order. So the law counts from the claimed step on.

    Broken by the first bucket: pytorch/pytorch#48880.
    """
    scenario, cap, dtype = drawn
    scenario = wider(scenario, cap)
    scenario = replace(scenario, parameters=tuple(replace(each, dtype=dtype) for each in scenario.parameters))
    cap = (scenario.bucket_cap or 0) // FORMATS[dtype].bytes
    most = (
        cap + max(each.count for each in scenario.parameters) + len(scenario.parameters) + PADDING * scenario.world_size
    )
    steps = scenario.places(ZeroGrad)
    learned = replace(scenario, program=scenario.program[: steps[LEARNS - 1] + 1])
    run = trial.run(scenario)
    trial.witnessed[REDUCED] += all(map(reductions, run.since_construction))
    if trial.claims.cap_from == CAP_FROM[0]:
        when, before = f"in step {LEARNS + 1}", [len(calls) for calls in trial.run(learned).collectives]
        sent = [calls[earlier:] for calls, earlier in zip(run.collectives, before, strict=True)]
    else:
        when, sent = f"in the first {LEARNS + 1} steps", list(run.since_construction)
    for rank, calls in enumerate(sent):
        if (longest := max(map(elements, reductions(calls)), default=0)) > most:
            words = f"A bucket cap of {cap} elements of {dtype}: {when} rank {rank} sends a message of {longest}"
            raise run.broken(Wasteful, f"{words}, which is more than the cap and a parameter.")


@law(
    "P18",
    in_three_buckets,
    needs=lambda claims: claims.overlaps and claims.most_ranks > 1,
    witnesses={OVERLAPPED: SEVERAL},
    only_on=NOTED,
)
def test_reductions_overlap_with_backward(trial: Trial, scenario: Scenario) -> None:
    """Of several buckets or parameters, the first is sent before backward has reached the last. Reductions started by
    then have not waited for one another.

    Why: communication during backward costs no time of its own. In this law backward runs from the last parameter to
    the first, and the step that counts follows those in which an order is learned. Polling a handle is not waiting.

    Broken by a fix for a race, for which backward waits for each reduction: deepspeedai/DeepSpeed#8364.
    """
    run = trial.run(scenario, timeline=True, function=NOTING)
    place = scenario.places(Backward)[-1]
    least = min(each.count for each in scenario.parameters)  # smaller collectives carry flags or counts
    headline = "Reductions do not overlap with backward."
    shown = overlapping(run, place, least, trial.claims.bucket_cap, headline)
    trial.witnessed[OVERLAPPED] += shown


GROWING = ("evaluate", "clip", "in turns", "raise", "save")


@law(
    "P18",
    lambda claims: st.sampled_from((SHORT, SHORT, SHORT, LONG)).flatmap(
        lambda pieces: windows(claims, most_local=1, steps=LEARNS + sum(pieces), more=GROWING)
    ),
    needs=lambda claims: claims.cost and claims.most_ranks > 1,
    witnesses={SENT: replace(ONCE, program=ONCE.program * (LEARNS + sum(SHORT)))},
    only_on=WEIGHED,
)
def test_what_is_held_does_not_grow_from_step_to_step(trial: Trial, scenario: Scenario) -> None:
    """In equal steps, later ones do not leave a rank with more bytes than earlier ones, neither at the maximum nor at
    the minimum. Objects that Python's garbage collector would free do not count.

    Why: memory that grows with every step, or every fourth, ends the run. Code that alternates between two buffers may
    hold more in one step than in the next. So a few steps are compared with the few before them: two of six, or twice
    five of seventeen.

    A recipe: buckets, handles or losses in a list that is never emptied. No report of it is known.
    """
    if growing(trial.run(scenario, function=WEIGHING)):  # garbage collection takes long, so it is tried only now
        run = trial.run(scenario, function=WEIGHING, collects=True)
        for rank, held in growing(run).items():
            words = f"What is held grows: after steps {LEARNS + 1} to {len(held)}, all alike, rank {rank} holds"
            raise run.broken(Wasteful, f"{words} {enumerated([*map(str, held[LEARNS:])])} bytes.")


def growing(run: Run) -> dict[int, list[int]]:
    """The bytes after each step, for the ranks that hold more and more."""
    ends = run.scenario.places(ZeroGrad)
    held = {rank: [seen["bytes"][place] for place in ends] for rank, seen in enumerate(run.observations)}
    length = (SHORT if len(ends) == LEARNS + sum(SHORT) else LONG)[0]

    def grows(each: list[int]) -> bool:
        pieces = [each[begin : begin + length] for begin in range(LEARNS, len(each), length)]
        return all(max(one) < max(two) and min(one) < min(two) for one, two in pairwise(pieces))

    return {rank: each for rank, each in held.items() if grows(each)}
