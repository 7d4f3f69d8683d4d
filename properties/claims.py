"""The table of claims: the promises of an implementation.

Claims are checked, and behaviour that is not claimed is not drawn. Everything said about a claim, to people or to code,
is said here (`lockstep.properties.claim`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from lockstep.oracle.averaging import ANY_WAY, AVERAGINGS
from lockstep.oracle.dealing import REMAINDERS
from lockstep.oracle.experts import EXPERT_DIVISORS
from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.setup import UNUSED, WIRES
from lockstep.oracle.window import POLICIES
from lockstep.properties.claim import Shape, by_name, claim, on_one_line, told, wrong_value

COLLECTIVES = ("all_reduce", "broadcast", "reduce_scatter", "all_gather")
# The moment from which every rank has rank 0's parameters and buffers: construction, or the first forward after it.
EQUAL_FROM = ("construction", "first forward")
# The step from which on no bucket exceeds its cap. Buckets may be rebuilt once the order of gradients is known.
CAP_FROM = ("third step", "first step")
# The moments at which rank 0's buffers are broadcast: after construction, or also before the forwards of a window.
BUFFERS = ("initial", "each")
# The places where several backwards may run before gradients are final. The second includes the first.
BACKWARDS = ("in no_sync", "anywhere")
# A module runs in at most one recomputed segment, or in any number. In the latter case the hook of a parameter fires
# once for each, and only the last one makes its gradient final.
REENTRANT = ("each once", "any")
SHARDS_PARAMETERS = 3  # the ZeRO stage
# The parameters that are concatenated and cut into equal slices together.
SLICES = ("buckets", "units")
# The schedules of a stage, if there are several. Stage 1: the collective that reduces gradients. Stage 3: parameters
# are gathered for forward and again for backward, or kept between them, or inside `no_sync` also kept until the next
# micro-batch.
SCHEDULES = {1: ("reduce-scatter", "all-reduce"), 3: ("gather twice", "gather once", "keep in no_sync")}
# A narrower dtype is claimed as `wire_dtype`, because drawn values must fit it.
REDUCTIONS = ("float32", "float64")
# Further values of claims beside True and False.
MASTERS = "always"
RENAMED = "under new names"
# With two ranks each can have as many, as models have up to five parameters.
MOST_PER_RANK = 2
# The ranks that save a sharded optimizer's state: each its own, or rank 0 the state of all, which every rank then
# loads.
SAVED_BY = ("each rank", "rank 0")
# The ranks on which an interrupted sampler can continue.
RESUMES = ("same ranks", "any ranks")
# Code with laws of its own and no others: the claim that says so, and the number of those laws.
KINDS = {"kernels": "P17", "collectives": "P14", "sampler": "P20", "loop": "P19", "experts": "P21"}


def _no_no_sync(shape: Shape) -> str:
    return "accumulation needs a method no_sync" if shape.has_no_sync is False else ""


def _no_join(shape: Shape) -> str:
    return "joins needs a method join(divide_by_initial_world_size)" if shape.has_join is False else ""


def _no_cap(shape: Shape) -> str:
    arguments = "bucket_cap_mb, bucket_size_mb, bucket_cap_bytes or bucket_bytes"
    return "" if shape.takes_cap else f"bucket_cap needs a constructor argument {arguments}"


def _no_group(shape: Shape) -> str:
    arguments = "process_group or group that may be None"
    return "" if shape.takes_group else f"subgroups needs a constructor argument {arguments}"


def _no_replicas(shape: Shape) -> str:
    return "" if shape.takes_replicas else "replicas needs a constructor argument replicas"


def _not_like_its_model(shape: Shape) -> str:
    right = shape.whole and not shape.makes_optimizer
    return "" if right else "stands_for_model is for what shards nothing and leaves the optimizer to the caller"


def _own_optimizer(name: str) -> Callable[[Shape], str]:
    words = f"{name} is for optimizers that the caller makes, and there is a make_optimizer"
    return lambda shape: words if shape.makes_optimizer else ""


def _no_optimizer(name: str) -> Callable[[Shape], str]:
    words = f"{name} is for sharded optimizers, made of parameters and a class of optimizers, and it is none"
    return lambda shape: "" if shape.is_optimizer else words


def _no_optimizer_of_its_own(shape: Shape) -> str:
    return "steps_in_backward needs a method make_optimizer" if shape.makes_optimizer is False else ""


def _no_rule(claims: "Claims") -> str:
    if not claims.of_one_kind or claims.optimizers:
        return ""
    return (
        "an optimizer that takes no class says whose steps it takes: optimizers is a tuple such as (torch.optim.Muon,)"
    )


def _too_few_parameters(claims: "Claims") -> str:
    if not 0 <= claims.parameters_per_rank <= MOST_PER_RANK:
        return f"parameters_per_rank is from 0 to {MOST_PER_RANK}, not {claims.parameters_per_rank}"
    if not claims.parameters_per_rank or not (claims.freezing or claims.unfreezing or claims.several_optimizers):
        return ""
    fewer = "of which a rank may own fewer"
    return f"parameters_per_rank goes with no freezing, unfreezing or several_optimizers, {fewer}"


def _no_ranks(claims: "Claims") -> str:
    return f"most_ranks is at least 1, not {claims.most_ranks!r}" if claims.most_ranks < 1 else ""


def _no_stage(claims: "Claims") -> str:
    known = claims.stage in (None, 0, 1, 2, 3)
    return "" if known else f"stage is None or a ZeRO stage from 0 to 3, not {claims.stage!r}"


def _late_shards(claims: "Claims") -> str:
    if claims.equal_from == EQUAL_FROM[0] or claims.stage is None:
        return ""
    return f"equal_from {on_one_line(claims.equal_from)} goes with no stage, not with {claims.stage}"


def _layers_of_nothing(claims: "Claims") -> str:
    if not claims.plain_layers or claims.stage == SHARDS_PARAMETERS:
        return ""
    return f"plain_layers goes with stage 3, not with {claims.stage}"


def _slices_of_nothing(claims: "Claims") -> str:
    if claims.sharded_by is None or (claims.exact_memory and claims.stage):
        return ""
    has = f"exact_memory {claims.exact_memory} and stage {claims.stage}"
    return f"sharded_by {claims.sharded_by!r} goes with exact_memory and a stage from 1 to 3, not with {has}"


def _masters_of_nothing(claims: "Claims") -> str:
    if claims.masters != MASTERS or (claims.stage is not None and not claims.joins):
        return ""
    has = f"stage {claims.stage} and joins {claims.joins}"
    return f"masters {MASTERS!r} goes with a stage and with no joins, not with {has}"


def _two_dtypes(claims: "Claims") -> str:
    others = claims.reduce_dtype, claims.gradient_dtype
    if claims.wire_dtype is None or others == (None, None):
        return ""
    has = " and ".join(map(repr, others))
    return f"wire_dtype {claims.wire_dtype!r} goes with no reduce_dtype and no gradient_dtype, not with {has}"


def _another_schedule(claims: "Claims") -> str:
    if claims.schedule is None or claims.schedule in SCHEDULES.get(claims.stage or 0, ()):
        return ""
    known = ", ".join(f"{way!r} at stage {stage}" for stage, ways in SCHEDULES.items() for way in ways)
    return f"schedule is None, {known}, not {on_one_line(claims.schedule)} at stage {claims.stage}"


def _no_argument(name: str, argument: str) -> Callable[[Shape], str]:
    words = f"{name} needs a constructor argument {argument}"
    return lambda shape: "" if getattr(shape, f"takes_{argument}") else words


def _no_sampler(name: str) -> Callable[["Claims"], str]:
    words = f"{name} is for what deals samples to ranks, and sampler is False"
    return lambda claims: words if getattr(claims, name) and not claims.sampler else ""


def _no_loop(name: str) -> Callable[["Claims"], str]:
    words = f"{name} is for training loops, and loop is False"
    return lambda claims: words if getattr(claims, name) and not claims.loop else ""


def _no_experts(name: str) -> Callable[["Claims"], str]:
    words = f"{name} is for parameters that belong to some ranks, and experts is False"
    return lambda claims: words if getattr(claims, name) and not claims.experts else ""


def _two_families(claims: "Claims") -> str:
    several = [name for name in KINDS if getattr(claims, name)]
    return f"{' and '.join(several)} do not go together: each has laws of its own" if several[1:] else ""


def _no_collectives(name: str) -> Callable[["Claims"], str]:
    words = f"{name} goes with collectives, and they are ()"
    return lambda claims: words if getattr(claims, name) and not claims.collectives else ""


@dataclass(frozen=True)
class Claims:
    """The promises, with their defaults for code that declares nothing (`read_claims` fills in the rest).

    Always claimed: the mean over ranks, equal replicas, the same collectives on every rank.
    """

    # The forms of a micro-batch.
    hook_order: bool = claim(
        True,
        "Autograd's hooks may fire in any order, and in another order on each rank.",
        inferred=lambda shape: not shape.plain_layers,
    )
    several_forwards: bool = claim(
        False, "One backward may follow several forwards: it starts from the sum of their losses.", probed=True
    )
    backwards: str | None = claim(
        None,
        "Several backwards may run before gradients are final: only inside `no_sync`, or anywhere.",
        choices=(None, *BACKWARDS),
        probed=True,
    )
    unused: str | None = claim(
        None,
        "A parameter that no rank uses is allowed, and its gradient is left untouched or becomes zero.",
        choices=(None, *UNUSED),
        probed=True,
        inferred=lambda shape: UNUSED[0] if shape.is_optimizer and not shape.averages_in_step else None,
    )
    idle_ranks: bool = claim(
        False,
        "A rank may use no parameter in a micro-batch in which another rank uses some.",
        probed=True,
    )
    survives_errors: bool = claim(
        False, "The caller may raise an error in a micro-batch, catch it, and train on.", probed=True
    )
    evaluates: bool = claim(
        True, "The model may be evaluated between micro-batches, without autograd and in evaluation mode."
    )
    inference_mode: bool = claim(True, "An evaluation between micro-batches may use `torch.inference_mode`.")
    measures: bool = claim(True, "The model may be evaluated in training mode and inside `no_sync`.")
    measures_late: bool = claim(
        False, "The model may be evaluated in training mode between a forward and its backward.", probed=True
    )
    acts_alone: bool = claim(
        False, "One rank may evaluate the model and take its state dict while the others do neither.", probed=True
    )
    eval_mode: bool = claim(True, "In evaluation mode with autograd on, training works as in training mode.")
    direct_forwards: bool = claim(
        False,
        "Outside `no_sync`, the caller may call the wrapped module directly, with the same effect as the wrapper.",
        probed=True,
    )
    drops_losses: bool = claim(
        False, "The caller may drop the loss of a forward in training mode, for example if it is NaN.", probed=True
    )
    zeroes_late: bool = claim(True, "Gradients may be zeroed after a forward and before its backward.")
    callers_collectives: bool = claim(
        False,
        "The caller may run its own collectives in the same group, even before a synchronization has ended.",
        probed=True,
        inferred=lambda shape: shape.finishes is False,
    )
    keyword_inputs: bool = claim(
        False,
        "The model may be called with keyword arguments, and may return a mapping.",
        inferred=lambda shape: shape.takes_keywords,
    )
    output_classes: bool = claim(True, "The model, or a module in it, may return its outputs in a dataclass.")
    in_place: bool = claim(True, "A module's output may be changed in place, by the calling module or by the caller.")
    reentrant_checkpointing: str | None = claim(
        None,
        "Re-entrant activation checkpointing is allowed: each module in one segment, or in any number of them.",
        choices=(None, *REENTRANT),
    )
    # Accumulation and use of gradients.
    averaging: str = claim(
        ANY_WAY,
        "The way of averaging, where it makes a difference: divide after the sum, divide before it, or multiply by "
        "1 / world size.",
        choices=(ANY_WAY, *AVERAGINGS),
    )
    accumulation: bool = claim(
        True,
        "`no_sync` accumulates gradients over micro-batches.",
        inferred=lambda shape: bool(shape.has_no_sync),
        lacking=_no_no_sync,
    )
    silent_no_sync: bool = claim(
        True, "Nothing is reduced inside `no_sync`. Decline it if your code reduces there in order to keep only shards."
    )
    ends_in_no_sync: bool = claim(
        False, "The caller may end the synchronization inside `no_sync` too, and then it has no effect."
    )
    drops_windows: bool = claim(
        True,
        "If the caller zeroes gradients instead of synchronizing, gradients accumulated inside `no_sync` are gone.",
        probed=(True,),
        inferred=lambda shape: not shape.zeroes_otherwise,
    )
    adds_to_averages: bool = claim(
        True, "If gradients are not zeroed, the next synchronization adds its mean to the earlier one."
    )
    callers_hooks: bool = claim(
        False,
        "The caller's hooks on parameters may change gradients. They may be registered before or after wrapping.",
        probed=True,
    )
    module_hooks: bool = claim(
        True,
        "The caller's hooks on modules run. A hook before a forward sees the module's whole parameters.",
        inferred=lambda shape: not shape.plain_layers,
    )
    final_in_hooks: bool = claim(
        False,
        "In a micro-batch that synchronizes, the caller's post-accumulate-grad hook sees the final gradient.",
        probed=True,
    )
    replaced_gradients: bool = claim(
        False, "Between micro-batches the caller may replace `.grad` by a copy of the gradient.", probed=True
    )
    outlive_steps: bool = claim(True, "Gradients are kept after an optimizer step, until they are zeroed.")
    swaps_weights: bool = claim(
        True,
        "Between steps the caller may write other weights into the parameters, evaluate, and write the old ones back.",
        probed=(True,),
        inferred=lambda shape: shape.leaves_weights,
    )
    optimizer_before: bool = claim(
        False,
        "The caller may make its optimizer from the model's parameters before it wraps the model.",
        probed=True,
        lacking=_own_optimizer("optimizer_before"),
    )
    stands_for_model: bool = claim(
        False,
        "Its own `parameters()`, `state_dict` and `load_state_dict` can be used in place of the model's.",
        inferred=lambda shape: shape.like_its_model and shape.leaves_weights,
        lacking=_not_like_its_model,
    )
    writes_weights: bool = claim(
        True,
        "Between steps the caller may write into the parameters, and training goes on from there.",
        probed=(True,),
        inferred=lambda shape: shape.leaves_weights or shape.is_optimizer,
    )
    idle_steps: bool = claim(True, "An optimizer step without any gradient changes nothing.")
    steps_in_backward: bool = claim(
        False,
        "Its optimizer steps in each backward that synchronizes, and gradients are freed there. Only this is checked.",
        lacking=_no_optimizer_of_its_own,
    )
    several_optimizers: bool = claim(
        True,
        "Each group of parameters may have an optimizer of its own.",
        probed=(True,),
        inferred=lambda shape: shape.makes_optimizer is False and not shape.spares_ranks,
    )
    joins: tuple[str, ...] = claim(
        (),
        "Ranks may run out of micro-batches inside its `join` context. The value lists its divisors of the mean.",
        choices=DIVISORS,
        some=True,
        lacking=_no_join,
    )
    # Models.
    several_dtypes: bool = claim(False, "One module may have parameters of several dtypes.", probed=True)
    float64: bool = claim(True, "Parameters, or the inputs of a collective, may be float64.")
    sixteen_bits: bool = claim(
        False, "Parameters, or the inputs of a collective, may be bfloat16 and float16.", probed=True
    )
    strided_parameters: bool = claim(
        False, "Parameters may be transposed or channels-last, that is, not contiguous in memory.", probed=True
    )
    sparse_gradients: bool = claim(False, "Embeddings may have sparse gradients.", probed=True)
    empty_parameters: bool = claim(
        False, "Parameters, or the inputs of a collective, may have no elements.", probed=True
    )
    scalars: bool = claim(True, "Parameters, or the inputs of a collective, may be scalars (no dimensions).")
    tied_parameters: bool = claim(False, "One parameter may have two names in the model.", probed=True)
    outside_reads: bool = claim(
        False, "A module's forward may read parameters of another module without calling it.", probed=True
    )
    losses_read: bool = claim(
        False, "The caller's loss may read parameters directly, beside the outputs of the model.", probed=True
    )
    double_backward: bool = claim(
        False,
        "The loss may be computed from gradients that come from `torch.autograd.grad` with `create_graph=True`.",
        probed=True,
    )
    freezing: bool = claim(
        False,
        "Parameters may be frozen after wrapping, and trained again later.",
        probed=True,
        inferred=lambda shape: shape.is_optimizer and not shape.spares_ranks,
    )
    unfreezing: bool = claim(False, "Parameters that are frozen at wrapping may be trained later.")
    copied_models: bool = claim(
        False,
        "The caller may make deep copies of the wrapped model. A copy keeps the weights of that moment.",
        probed=True,
    )
    replaced_parameters: bool | str = claim(
        False,
        "The caller may assign new parameters after wrapping, under the same names, or also under new names.",
        choices=(False, True, RENAMED),
        probed=True,
        lacking=_own_optimizer("replaced_parameters"),
    )
    moved_parameters: bool = claim(
        False, "The model's tensors may move to new memory after wrapping, as `.to(device)` does.", probed=True
    )
    compares_models: bool = claim(
        False, "If the ranks' models differ, every rank raises in the constructor.", probed=True
    )
    buffers: str | None = claim(
        None,
        "Models may have buffers. Rank 0's are broadcast after construction, or also before each forward.",
        choices=(None, *BUFFERS),
        probed=True,
    )
    other_models: bool = claim(
        False,
        "Another model may be wrapped and trained on the same ranks, even with one loss for both.",
        probed=True,
        inferred=lambda shape: shape.is_optimizer,
    )
    # Ranks, and the moment from which on they are equal.
    most_ranks: int = claim(8, "The largest world size that is drawn.", excluded=_no_ranks)
    parameters_per_rank: int = claim(
        0,
        "The smallest number of trained parameters per rank. With 0, a rank may own none.",
        excluded=_too_few_parameters,
    )
    subgroups: bool = claim(
        False,
        "A constructor argument `process_group` or `group` takes a group of the world's ranks to train on.",
        inferred=lambda shape: shape.takes_group,
        lacking=_no_group,
    )
    replicas: bool = claim(
        False,
        "A constructor argument `replicas` takes a number of groups. Each group shards the whole model (HSDP).",
        lacking=_no_replicas,
    )
    leaves_random_numbers: bool = claim(
        False, "It leaves the random state of torch, NumPy and Python unchanged.", probed=True
    )
    equal_from: str = claim(
        EQUAL_FROM[0],
        "The moment from which all ranks have rank 0's parameters: after construction, or after the first forward.",
        choices=EQUAL_FROM,
        excluded=_late_shards,
    )
    reloads: bool = claim(
        True,
        "A saved state may be loaded into a model and an optimizer that have trained on.",
        probed=(True,),
        inferred=lambda shape: shape.makes_optimizer is False,
    )
    # Sharding, and the bits of the results.
    stage: int | None = claim(
        None,
        "Its ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 parameters too. None and 0: no sharding.",
        choices=(None, 0, 1, 2, 3),
        inferred=lambda shape: 3 if shape.shards else 1 if shape.is_optimizer else None,
        excluded=_no_stage,
    )
    plain_layers: bool = claim(
        False,
        "It shards only layers that it knows, so the drawn models are made of `Linear`, `Embedding` and `LayerNorm`.",
        inferred=lambda shape: shape.plain_layers,
        excluded=_layers_of_nothing,
    )
    exact_memory: bool = claim(False, "Between events each rank holds only what its stage needs, and no other buffer.")
    sharded_by: str | None = claim(
        None,
        "Buckets, or units, are laid end to end and cut into equal slices, and each rank holds exactly its slice.",
        choices=(None, *SLICES),
        excluded=_slices_of_nothing,
    )
    masters: bool | str = claim(
        False,
        "It keeps float32 master weights of 16-bit parameters: if asked to, or always.",
        choices=(False, True, MASTERS),
        excluded=_masters_of_nothing,
    )
    same_bits: bool = claim(
        False,
        "Its optimizer step gives each element the same bits as torch's plain optimizer.",
        inferred=lambda shape: shape.is_optimizer,
    )
    plain_bits: bool = claim(
        True, "A rank's own forward and backward give plain torch's bits: no scaled loss, no compiled forward."
    )
    reduce_dtype: str | None = claim(
        None, "Gradients of a narrower dtype are reduced in this dtype.", choices=(None, *REDUCTIONS)
    )
    gradient_dtype: str | None = claim(
        None,
        "Averaged gradients are kept, clipped and stepped in this dtype. None: in the dtype of the reduction.",
        choices=(None, *REDUCTIONS),
    )
    wire_dtype: str | None = claim(
        None,
        "Gradients of every dtype are sent in this 16-bit dtype, as a compression hook does.",
        choices=(None, *WIRES),
        excluded=_two_dtypes,
    )
    # Costs.
    bucket_cap: bool = claim(
        False,
        "The constructor takes a bucket cap, and the result does not depend on it.",
        inferred=lambda shape: shape.takes_cap,
        lacking=_no_cap,
    )
    cap_from: str = claim(CAP_FROM[0], "The step from which on no bucket exceeds the cap.", choices=CAP_FROM)
    cost: bool = claim(
        False, "A step sends only what its stage needs. Gradients far below the bucket cap travel in one collective."
    )
    schedule: str | None = claim(
        None,
        "The schedule: how gradients are reduced at stage 1, or how often parameters are gathered at stage 3.",
        choices=(None, *(way for ways in SCHEDULES.values() for way in ways)),
        excluded=_another_schedule,
    )
    overlaps: bool = claim(
        False, "Reductions start while backward runs, and none is waited for before the next one starts."
    )
    # Sharded optimizers, which take parameters and the class of a plain one.
    is_optimizer: bool = claim(
        False,
        "It is a sharded optimizer: it takes parameters and an optimizer class, not a module. The laws on steps apply.",
        inferred=lambda shape: shape.is_optimizer,
        lacking=_no_optimizer("is_optimizer"),
    )
    averages_in_step: bool = claim(
        False,
        "Its `step` averages the gradients. Until then, each rank has its own.",
        inferred=lambda shape: shape.averages_in_step,
        lacking=_no_optimizer("averages_in_step"),
    )
    of_one_kind: bool = claim(
        False,
        "It takes only parameters, and has one step rule: that of the class in the claim `optimizers`.",
        inferred=lambda shape: shape.of_one_kind,
        lacking=_no_optimizer("of_one_kind"),
        excluded=_no_rule,
    )
    missing_gradients: bool = claim(
        False,
        "An averaged gradient may be None on some ranks. The step uses it all the same, or raises on every rank.",
        probed=True,
        lacking=_no_optimizer("missing_gradients"),
    )
    closures: bool = claim(
        False,
        "Its `step` takes a closure, runs it once on every rank, and returns the loss.",
        inferred=lambda shape: shape.takes_closures,
        lacking=_no_optimizer("closures"),
    )
    adds_groups: bool = claim(
        False,
        "Its `add_param_group` adds parameters, before the first step or later.",
        inferred=lambda shape: shape.adds_groups,
        lacking=_no_optimizer("adds_groups"),
    )
    schedulers: bool = claim(
        False,
        "Schedulers of torch may set its learning rates.",
        inferred=lambda shape: shape.schedules,
        lacking=_no_optimizer("schedulers"),
    )
    saved_by: str | None = claim(
        None,
        "Its `state_dict` is saved by each rank for itself, or by rank 0 for all. None: it cannot be saved.",
        choices=(None, *SAVED_BY),
        inferred=lambda shape: shape.saved_by,
        lacking=_no_optimizer("saved_by"),
    )
    optimizers: tuple[str, ...] = claim(
        (),
        "Besides SGD, Adam and AdamW it shards these classes, such as `(torch.optim.Muon,)`, with the same bits.",
        some=True,
        lacking=_no_optimizer("optimizers"),
    )
    # Code other than data parallelism.
    kernels: bool = claim(False, "It is a namespace of kernels. Only P17 is checked.")
    collectives: tuple[str, ...] = claim(
        (), "It wraps these collectives. Only P14 is checked.", choices=COLLECTIVES, some=True
    )
    differentiable: bool = claim(
        False, "Autograd differentiates through its collectives.", excluded=_no_collectives("differentiable")
    )
    integers: bool = claim(False, "Its collectives also take int64 tensors.", excluded=_no_collectives("integers"))

    # Samplers and loaders.
    sampler: bool = claim(
        False,
        "It is a sampler, batch sampler or loader. Only P20 is checked.",
        inferred=lambda shape: shape.is_sampler,
        excluded=_two_families,
    )
    batches: bool = claim(
        False,
        "It gives batches, of the size that its constructor takes as `batch_size`.",
        inferred=lambda shape: shape.takes_batch,
        lacking=_no_argument("batches", "batch"),
        excluded=_no_sampler("batches"),
    )
    shuffles: bool = claim(
        False,
        "Its constructor takes `shuffle`.",
        inferred=lambda shape: shape.takes_shuffle,
        lacking=_no_argument("shuffles", "shuffle"),
        excluded=_no_sampler("shuffles"),
    )
    drops_last: bool = claim(
        False,
        "Its constructor takes `drop_last`. With it, samples that ranks cannot share evenly are left out.",
        inferred=lambda shape: shape.takes_drop_last,
        lacking=_no_argument("drops_last", "drop_last"),
        excluded=_no_sampler("drops_last"),
    )
    remainder: str = claim(
        REMAINDERS[0],
        "If ranks cannot share the samples evenly, some are repeated, or some ranks get fewer, or some are dropped.",
        choices=REMAINDERS,
    )
    resumes: str | None = claim(
        None,
        "A new one that loads its `state_dict` goes on with the next sample, on as many ranks or on any number.",
        choices=(None, *RESUMES),
        inferred=lambda shape: RESUMES[0] if shape.resumes else None,
        excluded=_no_sampler("resumes"),
    )
    gathers: bool = claim(
        False,
        "Its `gather_for_metrics` returns one value for each sample of all ranks.",
        inferred=lambda shape: shape.gathers,
        excluded=_no_sampler("gathers"),
    )

    # Training loops.
    loop: bool = claim(False, "It is a training loop. Only P19 is checked.", inferred=lambda shape: shape.is_loop)
    loss_mean: str = claim(
        POLICIES[0],
        "The mean that a window's step takes: over all its tokens, over ranks of their means, or over micro-batches.",
        choices=POLICIES,
    )
    clips_norm: bool = claim(
        False,
        "Its constructor takes `max_norm`, and it clips the gradient to that norm.",
        inferred=lambda shape: shape.takes_max_norm,
        lacking=_no_argument("clips_norm", "max_norm"),
        excluded=_no_loop("clips_norm"),
    )
    follows_schedule: bool = claim(
        False,
        "Its constructor takes `scheduler`, a torch scheduler that it steps.",
        inferred=lambda shape: shape.takes_scheduler,
        lacking=_no_argument("follows_schedule", "scheduler"),
        excluded=_no_loop("follows_schedule"),
    )
    skips_overflow: bool = claim(
        False, "It skips a step whose gradient is not finite on some rank.", excluded=_no_loop("skips_overflow")
    )

    # Parameters that belong to some ranks.
    experts: bool = claim(
        False,
        "Its constructor takes `process_groups`, by parameter the ranks that have it. Only P21 is checked.",
        inferred=lambda shape: shape.has_experts,
    )
    expert_divisor: str = claim(
        EXPERT_DIVISORS[0],
        "An expert's gradients are summed over its group, and divided by the number of all ranks, or of its group.",
        choices=EXPERT_DIVISORS,
    )
    clips_experts: bool = claim(
        False,
        "Its `clip_grad_norm_` clips by the norm of the whole model's gradient, with the experts of all ranks.",
        inferred=lambda shape: shape.clips,
        excluded=_no_experts("clips_experts"),
    )
    saves_experts: bool = claim(
        False,
        "Its `full_parameters` has the experts of all ranks, and its `load_full` takes them on any mesh.",
        inferred=lambda shape: shape.saves_all,
        excluded=_no_experts("saves_experts"),
    )

    def __post_init__(self) -> None:
        wrong = [wrong_value(each, getattr(self, each.name)) for each in fields(self)]
        if not any(wrong):
            wrong = [excluded(self) for each in fields(self) if (excluded := told(each).excluded) is not None]
        if words := next(filter(None, wrong), ""):
            raise ValueError(f"claims: {words}")

    @property
    def family(self) -> str:
        """The number of the only laws that apply to it, for example P14; empty for code that trains models."""
        return next((number for name, number in KINDS.items() if getattr(self, name)), "")

    def without_broadcasts(self) -> "Claims":
        """The claims for programs that leave open when buffers are broadcast next.

        For an implementation that broadcasts buffers before forwards, models without buffers are drawn, because it may
        have no way to avoid broadcasts.
        """
        return replace(self, buffers=None if self.buffers == BUFFERS[-1] else self.buffers)

    @property
    def infers(self) -> bool:
        """True if an evaluation may use torch's inference mode."""
        return self.evaluates and self.inference_mode

    @property
    def measures_losses(self) -> bool:
        """True if an evaluation may run in training mode and inside `no_sync`."""
        return self.evaluates and self.measures

    @property
    def saves_state(self) -> bool:
        """True if the state of its optimizer may be saved and loaded, not only the weights."""
        return not self.is_optimizer or self.saved_by is not None

    @property
    def changes_ranks(self) -> bool:
        """True if a saved state may be loaded on another number of ranks, because it does not belong to a rank."""
        return (
            self.most_ranks > 1 and not self.plain_layers and (not self.is_optimizer or self.saved_by == SAVED_BY[-1])
        )

    @property
    def several_backwards(self) -> bool:
        """True if a micro-batch may have more than one backward."""
        return self.backwards == BACKWARDS[-1] or (self.backwards is not None and self.accumulation)

    @property
    def may_keep_masters(self) -> bool:
        """True if 16-bit parameters may have float32 master weights, kept by the caller or by a sharded optimizer."""
        return self.stage is None or bool(self.masters)


def read_claims(declared: Mapping[str, Any] | None, shape: Shape) -> Claims:
    """The claims of an implementation: the declared ones, and the rest from its shape.

    ``declared``: None if it declares nothing. Raises ValueError for an unknown claim or an impossible value.
    """
    if declared is not None and not isinstance(declared, Mapping):
        raise ValueError(f'claims is a dict, such as {{"unused": "zero"}}, not {on_one_line(declared)}')
    table = {each.name: told(each) for each in fields(Claims)}
    for name in declared or {}:
        if name not in table:
            close = " or ".join(map(repr, get_close_matches(str(name), table)))
            meant = f"did you mean {close}?" if close else f"there are {', '.join(table)}"
            raise ValueError(f"claims: there is no claim {name!r}; {meant}")
    declared = {name: by_name(value) for name, value in (declared or {}).items()}
    stage = declared.get("stage", 3 if shape.shards else None)
    averages = bool(declared.get("averages_in_step", shape.averages_in_step))
    few = bool(declared.get("parameters_per_rank"))
    whole = stage in (None, 0) and not shape.is_optimizer
    seen = replace(shape, whole=whole, spares_ranks=few, averages_in_step=averages)
    inferred = {name: each.inferred(seen) for name, each in table.items() if each.inferred is not None}
    claims = Claims(**{**inferred, **declared})
    for name, each in table.items():
        if each.lacking is not None and getattr(claims, name) and (words := each.lacking(seen)):
            raise ValueError(f"claims: {words}")
    return claims
