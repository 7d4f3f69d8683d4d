"""What an implementation promises: the table of claims. What is claimed is held against it; what is not claimed is not
drawn. Everything that is said of a claim, to people or to code, is said here (`lockstep.properties.claim`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.setup import AVERAGINGS, UNUSED, WIRES
from lockstep.properties.claim import Shape, claim, on_one_line, told, wrong_value

COLLECTIVES = ("all_reduce", "broadcast", "reduce_scatter", "all_gather")
# When every rank has rank 0's parameters and buffers: once it is constructed, or once a forward has run after that.
EQUAL_FROM = ("construction", "first forward")
# From when on no bucket exceeds its cap: buckets may be made anew once the order in which gradients come is learned.
CAP_FROM = ("third step", "first step")
# When rank 0's buffers become everybody's: after construction, or also before the forwards of a window.
BUFFERS = ("initial", "each")
# Where several backwards may come before gradients are final. The second takes in the first.
BACKWARDS = ("in no_sync", "anywhere")
# A module runs in at most one segment that is recomputed; or in any number of them, and then the hook of a parameter
# fires once for each, and only the last makes its gradient final.
REENTRANT = ("each once", "any")
# What is laid end to end and cut into equal slices.
SLICES = ("buckets", "units")
# By stage, where there are several ways: gradients come by one or the other; parameters are gathered for forward and
# again for backward, or stay from one to the other, and inside `no_sync` maybe also to the next.
SCHEDULES = {1: ("reduce-scatter", "all-reduce"), 3: ("gather twice", "gather once", "keep in no_sync")}
# A narrower one is claimed as `wire_dtype`, for what is drawn must fit it.
REDUCTIONS = ("float32", "float64")
# Beside True and False.
MASTERS = "always"


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


def _no_ranks(claims: "Claims") -> str:
    return f"most_ranks is at least 1, not {claims.most_ranks!r}" if claims.most_ranks < 1 else ""


def _no_stage(claims: "Claims") -> str:
    known = claims.stage in (None, 0, 1, 2, 3)
    return "" if known else f"stage is None or a ZeRO stage from 0 to 3, not {claims.stage!r}"


def _late_shards(claims: "Claims") -> str:
    if claims.equal_from == EQUAL_FROM[0] or claims.stage is None:
        return ""
    return f"equal_from {on_one_line(claims.equal_from)} goes with no stage, not with {claims.stage}"


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


def _no_collectives(name: str) -> Callable[["Claims"], str]:
    words = f"{name} goes with collectives, and they are ()"
    return lambda claims: words if getattr(claims, name) and not claims.collectives else ""


@dataclass(frozen=True)
class Claims:
    """The promises, with what is claimed for code that declares nothing (`read_claims` fills in the rest).

    Always claimed: the mean over ranks, equal replicas, the same collectives on every rank.
    """

    # What a micro-batch may be.
    hook_order: bool = claim(True, "Autograd's hooks may fire in any order, and in another order on each rank.")
    several_forwards: bool = claim(
        False, "Several forwards may come before one backward, of the sum of their losses.", probed=True
    )
    backwards: str | None = claim(
        None,
        "Several backwards may come before gradients are final: inside `no_sync` alone, or anywhere.",
        choices=(None, *BACKWARDS),
        probed=True,
    )
    unused: str | None = claim(
        None,
        "A parameter that no rank uses is allowed, and its gradient is left untouched or becomes zero.",
        choices=(None, *UNUSED),
        probed=True,
    )
    survives_errors: bool = claim(
        False, "Training goes on after an error of the caller's in a micro-batch that the caller catches.", probed=True
    )
    evaluates: bool = claim(
        True, "The model may be evaluated between micro-batches, without autograd and in evaluation mode."
    )
    inference_mode: bool = claim(True, "Such an evaluation may use `torch.inference_mode`.")
    measures: bool = claim(True, "An evaluation may leave modules in training mode, and may be inside `no_sync`.")
    measures_late: bool = claim(
        False, "An evaluation in training mode may come between a forward and its backward.", probed=True
    )
    acts_alone: bool = claim(
        False, "One rank may evaluate the model and take its state dict while the others do neither.", probed=True
    )
    eval_mode: bool = claim(True, "In evaluation mode, with autograd, it trains as it does in training mode.")
    direct_forwards: bool = claim(
        False,
        "Outside `no_sync`, a forward of the wrapped module itself counts like one through the wrapper.",
        probed=True,
    )
    drops_losses: bool = claim(
        False, "A forward in training mode may have no backward, as where the loss is NaN.", probed=True
    )
    zeroes_late: bool = claim(True, "Gradients may be zeroed after a forward and before its backward.")
    callers_collectives: bool = claim(
        False,
        "The caller may run collectives of its own in the same group, also before a synchronization has ended.",
        probed=True,
        inferred=lambda shape: shape.finishes is False,
    )
    keyword_inputs: bool = claim(
        False,
        "The model may be called with keyword arguments, and may return a mapping.",
        inferred=lambda shape: shape.takes_keywords,
    )
    output_classes: bool = claim(True, "The model, or a module in it, may return its outputs in a dataclass.")
    in_place: bool = claim(
        True, "What a module returns may be changed in place, by the module that called it or by the caller."
    )
    reentrant_checkpointing: str | None = claim(
        None,
        "Re-entrant activation checkpointing is allowed, with each module in one segment, or in any number of them.",
        choices=(None, *REENTRANT),
    )
    # How gradients accumulate, and what becomes of them.
    averaging: str = claim(
        "sum then divide",
        "How the mean is rounded: by a division after the sum, by one before it, or by a product with 1 / world size.",
        choices=AVERAGINGS,
    )
    accumulation: bool = claim(
        True,
        "`no_sync` accumulates gradients over micro-batches.",
        inferred=lambda shape: bool(shape.has_no_sync),
        lacking=_no_no_sync,
    )
    silent_no_sync: bool = claim(
        True, "Nothing is reduced inside `no_sync`; decline it for code that reduces there to keep shards only."
    )
    drops_windows: bool = claim(
        True,
        "What has accumulated inside `no_sync` is gone if the caller zeroes gradients in place of synchronizing.",
        probed=(True,),
        inferred=lambda shape: not shape.zeroes_otherwise,
    )
    adds_to_averages: bool = claim(
        True, "A synchronization adds to the averages that an earlier one left, unless they were zeroed."
    )
    callers_hooks: bool = claim(
        False,
        "The caller's hooks on parameters may change gradients, whether they are registered before or after wrapping.",
        probed=True,
    )
    module_hooks: bool = claim(
        True, "The caller's hooks on modules run, and before a forward find the module's parameters whole in memory."
    )
    final_in_hooks: bool = claim(
        False,
        "A hook that runs after a gradient has accumulated finds the final one, in a micro-batch that synchronizes.",
        probed=True,
    )
    replaced_gradients: bool = claim(
        False, "Between micro-batches the caller may assign copies of the gradients to `.grad`.", probed=True
    )
    outlive_steps: bool = claim(True, "Gradients are still there after an optimizer step.")
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
        "Its own `parameters()`, `state_dict` and `load_state_dict` are as good as the model's.",
        inferred=lambda shape: shape.like_its_model and shape.leaves_weights,
        lacking=_not_like_its_model,
    )
    writes_weights: bool = claim(
        True,
        "Between steps the caller may write into the parameters, and training goes on from there.",
        probed=(True,),
        inferred=lambda shape: shape.leaves_weights,
    )
    idle_steps: bool = claim(True, "A step without any gradient leaves everything as it is.")
    several_optimizers: bool = claim(
        True,
        "Each group of parameters may have an optimizer of its own.",
        probed=(True,),
        inferred=lambda shape: shape.makes_optimizer is False,
    )
    joins: tuple[str, ...] = claim(
        (),
        "Ranks may run out of micro-batches inside its context manager `join`; what the mean is divided by then.",
        choices=DIVISORS,
        some=True,
        lacking=_no_join,
    )
    # Which models.
    several_dtypes: bool = claim(False, "One module may have parameters of several dtypes.", probed=True)
    float64: bool = claim(True, "Parameters, or what a collective is given, may be float64.")
    sixteen_bits: bool = claim(
        False, "Parameters, or what a collective is given, may be bfloat16 and float16.", probed=True
    )
    strided_parameters: bool = claim(
        False, "Parameters may be transposed or channels last, so not contiguous in memory.", probed=True
    )
    sparse_gradients: bool = claim(False, "Embeddings may have sparse gradients.", probed=True)
    empty_parameters: bool = claim(
        False, "Parameters, or what a collective is given, may have no elements.", probed=True
    )
    scalars: bool = claim(True, "Parameters, or what a collective is given, may have no dimensions.")
    tied_parameters: bool = claim(False, "One parameter may have two names in the model.", probed=True)
    outside_reads: bool = claim(
        False, "A module's forward may read parameters of another module without calling it.", probed=True
    )
    losses_read: bool = claim(
        False, "The caller's loss may read parameters directly, beside the outputs of the model.", probed=True
    )
    double_backward: bool = claim(
        False,
        "The loss may be made of gradients that `torch.autograd.grad` gives with `create_graph=True`.",
        probed=True,
    )
    freezing: bool = claim(False, "Parameters may be frozen after wrapping, and trained again later.", probed=True)
    unfreezing: bool = claim(False, "Parameters that were frozen when they were wrapped may be trained later.")
    copied_models: bool = claim(
        False,
        "The caller may make deep copies of the wrapped model, which keep the weights of that moment.",
        probed=True,
    )
    replaced_parameters: bool = claim(
        False,
        "The caller may assign new parameters after wrapping.",
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
        "Models may have buffers; rank 0's are broadcast after construction, or also before each forward.",
        choices=(None, *BUFFERS),
        probed=True,
    )
    other_models: bool = claim(
        False, "Another model may be wrapped and trained on the same ranks, also with one loss for both.", probed=True
    )
    # Where it trains, and from when on.
    most_ranks: int = claim(8, "The largest world size it is run on.", excluded=_no_ranks)
    subgroups: bool = claim(
        False,
        "A constructor argument `process_group` or `group` takes the ranks to train on, of a larger world.",
        inferred=lambda shape: shape.takes_group,
        lacking=_no_group,
    )
    replicas: bool = claim(
        False,
        "A constructor argument `replicas` makes so many groups, each of which shards the whole model.",
        lacking=_no_replicas,
    )
    leaves_random_numbers: bool = claim(
        False, "The random numbers of torch, NumPy and Python go on as if it drew none.", probed=True
    )
    equal_from: str = claim(
        EQUAL_FROM[0],
        "When all ranks have rank 0's parameters: after construction, or only after the first forward.",
        choices=EQUAL_FROM,
        excluded=_late_shards,
    )
    reloads: bool = claim(
        True,
        "A saved state may be loaded into a model and an optimizer that have trained on.",
        probed=(True,),
        inferred=lambda shape: shape.makes_optimizer is False,
    )
    # What is sharded, and which bits come of it.
    stage: int | None = claim(
        None,
        "Its ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 parameters too; None and 0: it shards nothing.",
        choices=(None, 0, 1, 2, 3),
        inferred=lambda shape: 3 if shape.shards else None,
        excluded=_no_stage,
    )
    exact_memory: bool = claim(False, "Between events each rank holds what its stage needs, and no buffer beside it.")
    sharded_by: str | None = claim(
        None,
        "What is laid end to end and cut into equal slices: buckets, or units; each rank holds its slice to the byte.",
        choices=(None, *SLICES),
        excluded=_slices_of_nothing,
    )
    masters: bool | str = claim(
        False,
        "It keeps float32 masters of 16-bit parameters where it is asked to, or always.",
        choices=(False, True, MASTERS),
        excluded=_masters_of_nothing,
    )
    same_bits: bool = claim(False, "Its optimizer gives each element the bits that torch's plain optimizer gives.")
    plain_bits: bool = claim(
        True, "A rank's own forward and backward have plain torch's bits: no scaled loss, no compiled forward."
    )
    reduce_dtype: str | None = claim(
        None, "Gradients of a narrower dtype are reduced in this one.", choices=(None, *REDUCTIONS)
    )
    gradient_dtype: str | None = claim(
        None,
        "Averaged gradients are kept, clipped and stepped in this dtype; None: in the one they are reduced in.",
        choices=(None, *REDUCTIONS),
    )
    wire_dtype: str | None = claim(
        None,
        "Gradients of every dtype are sent in this one, of 16 bits, as a compression hook does.",
        choices=(None, *WIRES),
        excluded=_two_dtypes,
    )
    # What it costs.
    bucket_cap: bool = claim(
        False,
        "The constructor takes a bucket cap, and the result does not depend on it.",
        inferred=lambda shape: shape.takes_cap,
        lacking=_no_cap,
    )
    cap_from: str = claim(CAP_FROM[0], "From which step on no bucket exceeds the cap.", choices=CAP_FROM)
    cost: bool = claim(
        False, "A step sends what its stage needs and no more, and what is far below the cap in one collective."
    )
    schedule: str | None = claim(
        None,
        "How gradients are reduced at stage 1, or how often parameters are gathered at stage 3.",
        choices=(None, *(way for ways in SCHEDULES.values() for way in ways)),
        excluded=_another_schedule,
    )
    overlaps: bool = claim(
        False, "Reductions are launched while backward runs, and none is waited for before the next is launched."
    )
    # What is no data parallelism.
    kernels: bool = claim(False, "It is a namespace of kernels: P17 is held against it and nothing else.")
    collectives: tuple[str, ...] = claim(
        (), "It wraps these collectives: P14 is held against it and nothing else.", choices=COLLECTIVES, some=True
    )
    differentiable: bool = claim(
        False, "Autograd goes through its collectives.", excluded=_no_collectives("differentiable")
    )
    integers: bool = claim(False, "Its collectives take int64.", excluded=_no_collectives("integers"))

    def __post_init__(self) -> None:
        wrong = [wrong_value(each, getattr(self, each.name)) for each in fields(self)]
        if not any(wrong):
            wrong = [excluded(self) for each in fields(self) if (excluded := told(each).excluded) is not None]
        if words := next(filter(None, wrong), ""):
            raise ValueError(f"claims: {words}")

    def without_broadcasts(self) -> "Claims":
        """The same, for programs in which it is open when buffers that are broadcast are broadcast next: who broadcasts
        them before forwards is drawn models without any, as it may have no way not to.
        """
        return replace(self, buffers=None if self.buffers == BUFFERS[-1] else self.buffers)

    @property
    def infers(self) -> bool:
        """Whether an evaluation may be in torch's inference mode."""
        return self.evaluates and self.inference_mode

    @property
    def measures_losses(self) -> bool:
        """Whether an evaluation may be in the mode in which modules train, and inside `no_sync`."""
        return self.evaluates and self.measures

    @property
    def several_backwards(self) -> bool:
        """Whether a micro-batch may have more than one."""
        return self.backwards == BACKWARDS[-1] or (self.backwards is not None and self.accumulation)

    @property
    def may_keep_masters(self) -> bool:
        """Whether 16-bit parameters may have float32 masters: of the caller's, or of a sharded optimizer's."""
        return self.stage is None or bool(self.masters)


def read_claims(declared: Mapping[str, Any] | None, shape: Shape) -> Claims:
    """The claims of an implementation: what it declares, and what its shape says of the rest. ``declared``: None, where
    it declares nothing.

    Raises ValueError for a claim that does not exist or cannot be.
    """
    if declared is not None and not isinstance(declared, Mapping):
        raise ValueError(f'claims is a dict, such as {{"unused": "zero"}}, not {on_one_line(declared)}')
    table = {each.name: told(each) for each in fields(Claims)}
    for name in declared or {}:
        if name not in table:
            close = " or ".join(map(repr, get_close_matches(str(name), table)))
            meant = f"did you mean {close}?" if close else f"there are {', '.join(table)}"
            raise ValueError(f"claims: there is no claim {name!r}; {meant}")
    stage = (declared or {}).get("stage", 3 if shape.shards else None)
    seen = replace(shape, whole=stage in (None, 0))
    inferred = {name: each.inferred(seen) for name, each in table.items() if each.inferred is not None}
    claims = Claims(**{**inferred, **(declared or {})})
    for name, each in table.items():
        if each.lacking is not None and getattr(claims, name) and (words := each.lacking(seen)):
            raise ValueError(f"claims: {words}")
    return claims
