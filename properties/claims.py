"""What an implementation promises. What is claimed is held against it; what is not claimed is not drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, get_args

from lockstep.oracle.program import AVERAGINGS, DIVISORS, UNUSED, WIRES

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
# What the others are one of, or some of; what is not claimed, as None, is the default.
_CHOICES = {
    "averaging": AVERAGINGS,
    "backwards": BACKWARDS,
    "buffers": BUFFERS,
    "cap_from": CAP_FROM,
    "collectives": COLLECTIVES,
    "equal_from": EQUAL_FROM,
    "joins": DIVISORS,
    "reentrant_checkpointing": REENTRANT,
    "sharded_by": SLICES,
    "gradient_dtype": REDUCTIONS,
    "unused": UNUSED,
    "reduce_dtype": REDUCTIONS,
    "wire_dtype": WIRES,
}
_WORDS: dict[object, str] = {bool: "True or False", int: "a whole number", int | None: "None or a whole number"}


def claim(default: Any, says: str) -> Any:
    """A claim: what is claimed where nothing is declared, and what it promises, in a sentence."""
    return field(default=default, metadata={"says": says})


@dataclass(frozen=True)
class Claims:
    """The promises, with what is claimed for code that declares nothing (`read_claims` fills in the rest).

    Always claimed: the mean over ranks, equal replicas, the same collectives on every rank.
    """

    # What a micro-batch may be.
    hook_order: bool = claim(True, "Autograd's hooks may fire in any order, and in another order on each rank.")
    several_forwards: bool = claim(False, "Several forwards may come before one backward, of the sum of their losses.")
    backwards: str | None = claim(
        None, "Several backwards may come before gradients are final: inside `no_sync` alone, or anywhere."
    )
    unused: str | None = claim(
        None, "A parameter that no rank uses is allowed, and its gradient is left untouched or becomes zero."
    )
    survives_errors: bool = claim(
        False, "Training goes on after an error of the caller's in a micro-batch that the caller catches."
    )
    evaluates: bool = claim(
        True, "The model may be evaluated between micro-batches, without autograd and in evaluation mode."
    )
    inference_mode: bool = claim(True, "Such an evaluation may use `torch.inference_mode`.")
    measures: bool = claim(True, "An evaluation may leave modules in training mode, and may be inside `no_sync`.")
    measures_late: bool = claim(False, "An evaluation in training mode may come between a forward and its backward.")
    acts_alone: bool = claim(
        False, "One rank may evaluate the model and take its state dict while the others do neither."
    )
    eval_mode: bool = claim(True, "In evaluation mode, with autograd, it trains as it does in training mode.")
    direct_forwards: bool = claim(
        False, "Outside `no_sync`, a forward of the wrapped module itself counts like one through the wrapper."
    )
    drops_losses: bool = claim(False, "A forward in training mode may have no backward, as where the loss is NaN.")
    zeroes_late: bool = claim(True, "Gradients may be zeroed after a forward and before its backward.")
    callers_collectives: bool = claim(
        False,
        "The caller may run collectives of its own in the same group, also between a backward and the end of "
        "its synchronization.",
    )
    keyword_inputs: bool = claim(False, "The model may be called with keyword arguments, and may return a mapping.")
    output_classes: bool = claim(True, "The model, or a module in it, may return its outputs in a dataclass.")
    in_place: bool = claim(
        True, "What a module returns may be changed in place, by the module that called it or by the caller."
    )
    reentrant_checkpointing: str | None = claim(
        None,
        "Re-entrant activation checkpointing is allowed, with each module in one segment, or in any number of them.",
    )
    # How gradients accumulate, and what becomes of them.
    averaging: str = claim(
        "sum then divide",
        "How the mean is rounded: by a division after the sum, by one before it, or by a product with 1 / world size.",
    )
    accumulation: bool = claim(True, "`no_sync` accumulates gradients over micro-batches.")
    silent_no_sync: bool = claim(
        True, "Nothing is reduced inside `no_sync`; decline it for code that reduces there to keep shards only."
    )
    drops_windows: bool = claim(
        True, "What has accumulated inside `no_sync` is gone if the caller zeroes gradients in place of synchronizing."
    )
    adds_to_averages: bool = claim(
        True, "A synchronization adds to the averages that an earlier one left, unless they were zeroed."
    )
    callers_hooks: bool = claim(
        False,
        "The caller's hooks on parameters may change gradients, whether they are registered before or after wrapping.",
    )
    module_hooks: bool = claim(
        True, "The caller's hooks on modules run, and before a forward find the module's parameters whole in memory."
    )
    final_in_hooks: bool = claim(
        False,
        "A hook that runs after a gradient has accumulated finds the final gradient, in a micro-batch that "
        "synchronizes.",
    )
    replaced_gradients: bool = claim(
        False, "Between micro-batches the caller may assign copies of the gradients to `.grad`."
    )
    outlive_steps: bool = claim(True, "Gradients are still there after an optimizer step.")
    swaps_weights: bool = claim(
        True,
        "Between steps the caller may write other weights into the parameters, evaluate, and write the old ones back.",
    )
    optimizer_before: bool = claim(
        False, "The caller may make its optimizer from the model's parameters before it wraps the model."
    )
    stands_for_model: bool = claim(
        False, "Its own `parameters()`, `state_dict` and `load_state_dict` are as good as the model's."
    )
    writes_weights: bool = claim(
        True, "Between steps the caller may write into the parameters, and training goes on from there."
    )
    idle_steps: bool = claim(True, "A step without any gradient leaves everything as it is.")
    several_optimizers: bool = claim(True, "Each group of parameters may have an optimizer of its own.")
    joins: tuple[str, ...] = claim(
        (), "Ranks may run out of micro-batches inside its context manager `join`; what the mean is divided by then."
    )
    # Which models.
    several_dtypes: bool = claim(False, "One module may have parameters of several dtypes.")
    float64: bool = claim(True, "Parameters, or what a collective is given, may be float64.")
    sixteen_bits: bool = claim(False, "Parameters, or what a collective is given, may be bfloat16 and float16.")
    strided_parameters: bool = claim(
        False, "Parameters may be transposed or channels last, so not contiguous in memory."
    )
    sparse_gradients: bool = claim(False, "Embeddings may have sparse gradients.")
    empty_parameters: bool = claim(False, "Parameters, or what a collective is given, may have no elements.")
    scalars: bool = claim(True, "Parameters, or what a collective is given, may have no dimensions.")
    tied_parameters: bool = claim(False, "One parameter may have two names in the model.")
    outside_reads: bool = claim(False, "A module's forward may read parameters of another module without calling it.")
    losses_read: bool = claim(False, "The caller's loss may read parameters directly, beside the outputs of the model.")
    double_backward: bool = claim(
        False, "The loss may be made of gradients that `torch.autograd.grad` gives with `create_graph=True`."
    )
    freezing: bool = claim(False, "Parameters may be frozen after wrapping, and trained again later.")
    unfreezing: bool = claim(False, "Parameters that were frozen when they were wrapped may be trained later.")
    copied_models: bool = claim(
        False, "The caller may make deep copies of the wrapped model, which keep the weights of that moment."
    )
    replaced_parameters: bool = claim(False, "The caller may assign new parameters after wrapping.")
    moved_parameters: bool = claim(
        False, "The model's tensors may move to new memory after wrapping, as `.to(device)` does."
    )
    compares_models: bool = claim(False, "If the ranks' models differ, every rank raises in the constructor.")
    buffers: str | None = claim(
        None, "Models may have buffers; rank 0's are broadcast after construction, or also before each forward."
    )
    other_models: bool = claim(
        False, "Another model may be wrapped and trained on the same ranks, also with one loss for both."
    )
    # Where it trains, and from when on.
    most_ranks: int = claim(8, "The largest world size it is run on.")
    subgroups: bool = claim(
        False, "A constructor argument `process_group` or `group` takes the ranks to train on, of a larger world."
    )
    replicas: bool = claim(
        False, "A constructor argument `replicas` makes so many groups, each of which shards the whole model."
    )
    leaves_random_numbers: bool = claim(
        False, "The random numbers of torch, NumPy and Python go on as if it drew none."
    )
    equal_from: str = claim(
        EQUAL_FROM[0], "When all ranks have rank 0's parameters: after construction, or only after the first forward."
    )
    reloads: bool = claim(True, "A saved state may be loaded into a model and an optimizer that have trained on.")
    # What is sharded, and which bits come of it.
    stage: int | None = claim(
        None,
        "Its ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 parameters too; None and 0: it shards nothing.",
    )
    exact_memory: bool = claim(False, "Between events each rank holds what its stage needs, and no buffer beside it.")
    sharded_by: str | None = claim(
        None,
        "What is laid end to end and cut into equal slices: buckets, or units; each rank holds its slice to the byte.",
    )
    masters: bool | str = claim(False, "It keeps float32 masters of 16-bit parameters where it is asked to, or always.")
    same_bits: bool = claim(False, "Its optimizer gives each element the bits that torch's plain optimizer gives.")
    plain_bits: bool = claim(
        True, "A rank's own forward and backward have plain torch's bits: no scaled loss, no compiled forward."
    )
    reduce_dtype: str | None = claim(None, "Gradients of a narrower dtype are reduced in this one.")
    gradient_dtype: str | None = claim(
        None, "Averaged gradients are kept, clipped and stepped in this dtype; None: in the one they are reduced in."
    )
    wire_dtype: str | None = claim(
        None, "Gradients of every dtype are sent in this one, of 16 bits, as a compression hook does."
    )
    # What it costs.
    bucket_cap: bool = claim(False, "The constructor takes a bucket cap, and the result does not depend on it.")
    cap_from: str = claim(CAP_FROM[0], "From which step on no bucket exceeds the cap.")
    cost: bool = claim(
        False, "A step sends what its stage needs and no more, and what is far below the cap in one collective."
    )
    schedule: str | None = claim(
        None, "How gradients are reduced at stage 1, or how often parameters are gathered at stage 3."
    )
    overlaps: bool = claim(
        False, "Reductions are launched while backward runs, and none is waited for before the next is launched."
    )
    # What is no data parallelism.
    kernels: bool = claim(False, "It is a namespace of kernels: P17 is held against it and nothing else.")
    collectives: tuple[str, ...] = claim((), "It wraps these collectives: P14 is held against it and nothing else.")
    differentiable: bool = claim(False, "Autograd goes through its collectives.")
    integers: bool = claim(False, "Its collectives take int64.")

    def __post_init__(self) -> None:
        for each in fields(self):
            value, kinds = getattr(self, each.name), get_args(each.type) or (each.type,)
            if each.type in _WORDS and type(value) not in kinds:
                raise ValueError(f"claims: {each.name} is {_WORDS[each.type]}, not {on_one_line(value)}")
        for name, choices in _CHOICES.items():
            value, known = getattr(self, name), ", ".join(map(repr, choices))
            if getattr(Claims, name) == () and not (type(value) is tuple and all(each in choices for each in value)):
                raise ValueError(f"claims: {name} is a tuple of some of {known}, not {on_one_line(value)}")
            if getattr(Claims, name) != () and value not in (getattr(Claims, name), *choices):
                none = "None or " if getattr(Claims, name) is None else ""
                raise ValueError(f"claims: {name} is {none}one of {known}, not {on_one_line(value)}")
        if type(self.masters) is not bool and self.masters != MASTERS:
            raise ValueError(f"claims: masters is True, False or {MASTERS!r}, not {on_one_line(self.masters)}")
        if self.masters == MASTERS and (self.stage is None or self.joins):
            raise ValueError(
                f"claims: masters {MASTERS!r} goes with a stage and with no joins, "
                f"not with stage {self.stage} and joins {self.joins}"
            )
        if self.differentiable and not self.collectives:
            raise ValueError(f"claims: differentiable goes with collectives, and they are {self.collectives}")
        if self.integers and not self.collectives:
            raise ValueError(f"claims: integers goes with collectives, and they are {self.collectives}")
        if self.most_ranks < 1:
            raise ValueError(f"claims: most_ranks is at least 1, not {self.most_ranks!r}")
        if self.stage not in (None, 0, 1, 2, 3):
            raise ValueError(f"claims: stage is None or a ZeRO stage from 0 to 3, not {self.stage!r}")
        if self.equal_from != EQUAL_FROM[0] and self.stage is not None:
            raise ValueError(
                f"claims: equal_from {on_one_line(self.equal_from)} goes with no stage, not with {self.stage}"
            )
        if self.wire_dtype is not None and (self.reduce_dtype, self.gradient_dtype) != (None, None):
            raise ValueError(
                f"claims: wire_dtype {self.wire_dtype!r} goes with no reduce_dtype and no gradient_dtype, "
                f"not with {self.reduce_dtype!r} and {self.gradient_dtype!r}"
            )
        if self.sharded_by is not None and not (self.exact_memory and self.stage):
            raise ValueError(
                f"claims: sharded_by {self.sharded_by!r} goes with exact_memory and a stage from 1 to 3, "
                f"not with exact_memory {self.exact_memory} and stage {self.stage}"
            )
        if self.schedule is not None and self.schedule not in SCHEDULES.get(self.stage or 0, ()):
            known = ", ".join(f"{way!r} at stage {stage}" for stage, ways in SCHEDULES.items() for way in ways)
            raise ValueError(
                f"claims: schedule is None, {known}, not {on_one_line(self.schedule)} at stage {self.stage}"
            )

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


def choices(name: str) -> tuple[Any, ...]:
    """The values that a claim may have; none are listed of a number. What some may be claimed of is listed one by one,
    each in a tuple.
    """
    default, values = getattr(Claims, name), _CHOICES.get(name)
    if values is not None:
        several = default == ()
        first = [] if default in values else [default]
        return (*first, *((value,) if several else value for value in values))
    if name == "masters":
        return (False, True, MASTERS)
    if name == "stage":
        return (None, 0, 1, 2, 3)
    if name == "schedule":
        return (None, *dict.fromkeys(way for ways in SCHEDULES.values() for way in ways))
    return (False, True) if isinstance(default, bool) else ()


def on_one_line(value: object) -> str:
    """A value in an error message: on one line, however long it is."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 100 else f"{words[:97]}..."


def read_claims(
    declared: Mapping[str, Any] | None,
    has_no_sync: bool | None,
    takes_cap: bool,
    has_join: bool | None = False,
    makes_optimizer: bool | None = False,
    zeroes_otherwise: bool = False,
    takes_group: bool = False,
    takes_replicas: bool = False,
    takes_keywords: bool = False,
    like_its_model: bool = False,
    finishes: bool | None = True,
) -> Claims:
    """The claims of an implementation: what it declares, and what its shape says of the rest; None: it does not say.

    ``zeroes_otherwise``: gradients may have to be zeroed by a method that nobody here calls.

    Raises ValueError for a claim that does not exist or cannot be.
    """
    if declared is not None and not isinstance(declared, Mapping):
        raise ValueError(f'claims is a dict, such as {{"unused": "zero"}}, not {on_one_line(declared)}')
    known = [each.name for each in fields(Claims)]
    for name in declared or {}:
        if name not in known:
            close = " or ".join(map(repr, get_close_matches(str(name), known)))
            meant = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
            raise ValueError(f"claims: there is no claim {name!r}; {meant}")
    shape = {"accumulation": bool(has_no_sync), "drops_windows": not zeroes_otherwise, "bucket_cap": takes_cap}
    whole = (declared or {}).get("stage") in (None, 0)
    shape |= {"reloads": makes_optimizer is False, "swaps_weights": makes_optimizer is False and whole}
    shape["writes_weights"] = shape["swaps_weights"]
    shape["stands_for_model"] = like_its_model and shape["swaps_weights"]
    shape["several_optimizers"] = makes_optimizer is False
    shape["callers_collectives"] = finishes is False
    claims = Claims(**{**shape, "subgroups": takes_group, "keyword_inputs": takes_keywords, **(declared or {})})
    if claims.accumulation and has_no_sync is False:
        raise ValueError("claims: accumulation needs a method no_sync")
    if claims.joins and has_join is False:
        raise ValueError("claims: joins needs a method join(divide_by_initial_world_size)")
    if claims.bucket_cap and not takes_cap:
        raise ValueError(
            "claims: bucket_cap needs a constructor argument "
            "bucket_cap_mb, bucket_size_mb, bucket_cap_bytes or bucket_bytes"
        )
    if claims.subgroups and not takes_group:
        raise ValueError("claims: subgroups needs a constructor argument process_group or group that may be None")
    if claims.stands_for_model and (makes_optimizer or claims.stage):
        raise ValueError("claims: stands_for_model is for what shards nothing and leaves the optimizer to the caller")
    if claims.replicas and not takes_replicas:
        raise ValueError("claims: replicas needs a constructor argument replicas")
    for name in ("replaced_parameters", "optimizer_before"):
        if getattr(claims, name) and makes_optimizer:
            raise ValueError(f"claims: {name} is for optimizers that the caller makes, and there is a make_optimizer")
    return claims
