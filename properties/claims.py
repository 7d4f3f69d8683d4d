"""What an implementation promises. What is claimed is held against it; what is not claimed is not drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, get_args

from oracle.program import AVERAGINGS, DIVISORS, UNUSED, WIRES

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


@dataclass(frozen=True)
class Claims:
    """The promises, with what is claimed for code that declares nothing (`read_claims` fills in the rest).

    Always claimed: the mean over ranks, equal replicas, the same collectives on every rank.
    """

    # What a micro-batch may be.
    hook_order: bool = True  # right whatever order the hooks fire in, also where it differs between ranks
    several_forwards: bool = False  # several forwards before one backward, of the sum of their losses
    # Several backwards, through one forward or, if such are claimed, through one each of several: one of BACKWARDS;
    # None: nowhere.
    backwards: str | None = None
    unused: str | None = None  # None: every trained parameter takes part; else what one that no rank used gets
    survives_errors: bool = False  # the caller's own error in a micro-batch, caught, and training goes on
    evaluates: bool = True  # a forward without autograd, in evaluation mode, comes anywhere between micro-batches
    inference_mode: bool = True  # and may be in torch's inference mode
    measures: bool = True  # and may leave modules in the mode in which they train, and be inside `no_sync`
    measures_late: bool = False  # and may come between a forward and its backward, in the mode in which modules train
    # One rank alone may evaluate, and take the model's state dict, while the others do not.
    acts_alone: bool = False
    eval_mode: bool = True  # in evaluation mode, with autograd, it does what it does in training mode
    # Outside `no_sync` a forward of the wrapped module itself counts like one through the wrapper.
    direct_forwards: bool = False
    drops_losses: bool = False  # a forward in training mode that no backward follows, as of a loss that is NaN
    zeroes_late: bool = True  # gradients are zeroed after a forward and before its backward
    # The caller has collectives of its own in the same group, also between a backward and the method that ends its
    # synchronization; claimed also for code that has no such method.
    callers_collectives: bool = False
    keyword_inputs: bool = False  # a model is given its inputs by keyword, and gives its outputs in a mapping
    output_classes: bool = True  # a model, or a module of it, gives its outputs in a class of its own, a dataclass
    in_place: bool = True  # what a module gives is changed in place, by the module that called it or by the caller
    reentrant_checkpointing: str | None = None  # re-entrant activation checkpointing: None or one of REENTRANT
    # How gradients accumulate, and what becomes of them.
    averaging: str = "sum then divide"  # how, one of oracle.program.AVERAGINGS; who divides may multiply by 1 / N
    accumulation: bool = True  # ``no_sync``
    silent_no_sync: bool = True  # nothing is reduced inside; else each micro-batch may be, to hold shards alone
    drops_windows: bool = True  # what has accumulated inside is gone where the caller zeroes gradients instead
    # What is synchronized adds to what the last synchronization has left, unless that was zeroed.
    adds_to_averages: bool = True
    # A hook that the caller registers on a parameter, before or after wrapping, makes another gradient of each that
    # comes.
    callers_hooks: bool = False
    # A hook that the caller registers on a module, before or after wrapping, runs with its forward, and one that runs
    # before it finds the module's parameters in memory, with all their elements.
    module_hooks: bool = True
    # A hook that the caller registers on a parameter after wrapping, to run once its gradient has accumulated, finds
    # the one that is final, where the micro-batch synchronizes.
    final_in_hooks: bool = False
    # Between micro-batches the caller puts other tensors of the same values in the place of gradients.
    replaced_gradients: bool = False
    outlive_steps: bool = True  # gradients are there after a step, for another one, a clip or more to add to them
    # Between steps the caller writes other weights into the parameters, evaluates, and writes back what was there; not
    # claimed for code that shards or makes the optimizer, unless it says so.
    swaps_weights: bool = True
    optimizer_before: bool = False  # the caller may make its optimizer of the model's parameters before it wraps it
    # Its own `parameters()`, `state_dict` and `load_state_dict` are as good as the model's; claimed for a
    # class of modules that neither shards nor makes the optimizer, and has the last two both or neither, unless it says
    # otherwise.
    stands_for_model: bool = False
    # Between steps the caller writes into the parameters, and that is what training goes on from; as above, and where
    # there are no masters.
    writes_weights: bool = True
    idle_steps: bool = True  # a step without any gradient, as after a batch that was left out, leaves all as it is
    # Each group of parameters may have an optimizer of its own, and a step be of some of them; not claimed for code
    # that makes the optimizer, unless it says so.
    several_optimizers: bool = True
    joins: tuple[str, ...] = ()  # ranks may run out of micro-batches in a context ``join``; what means divide by then
    # Which models.
    several_dtypes: bool = False  # parameters of several dtypes in one module
    float64: bool = True  # parameters, or what a collective is given, in float64
    sixteen_bits: bool = False  # parameters, or what a collective is given, in bfloat16 and float16
    strided_parameters: bool = False  # parameters that are not contiguous: transposed, channels last
    sparse_gradients: bool = False  # the gradients of embeddings are sparse
    empty_parameters: bool = False  # parameters, or what a collective is given, without elements
    scalars: bool = True  # parameters, or what a collective is given, of no dimensions
    tied_parameters: bool = False  # a tensor under two names
    outside_reads: bool = False  # a module's forward reads parameters of another module, which is not called for them
    # The caller's loss reads parameters itself, beside what a forward gives.
    losses_read: bool = False
    # A loss is made of gradients by the inputs, which the caller takes of what the forward gives by
    # ``torch.autograd.grad``, with a graph.
    double_backward: bool = False
    freezing: bool = False  # parameters are frozen after wrapping, and those trained then are trained again
    unfreezing: bool = False  # and so are, later, those that were frozen when they were wrapped
    # The caller makes deep copies of the model, and each has the weights that the model had then.
    copied_models: bool = False
    replaced_parameters: bool = False  # the caller assigns new parameters after wrapping
    moved_parameters: bool = False  # the model's tensors move to new memory after wrapping, as ``.to(device)`` does
    # Where the ranks' models differ, in number, names, order, shapes or dtypes of parameters, or in which are trained,
    # every rank says so in construction.
    compares_models: bool = False
    buffers: str | None = None  # None: models have none; else when rank 0's are broadcast, one of BUFFERS
    other_models: bool = False  # another model may be wrapped, and trained on the same ranks meanwhile, with one loss
    # Where it trains, and from when on.
    most_ranks: int = 8  # world sizes up to this one
    subgroups: bool = False  # an optional constructor argument takes the group of ranks to train on, of a larger world
    replicas: bool = False  # a constructor argument ``replicas``: so many groups, each of which shards the model
    leaves_random_numbers: bool = False  # torch's, NumPy's and Python's go on where the caller left them, on every rank
    equal_from: str = EQUAL_FROM[0]  # when ranks are equal, one of EQUAL_FROM; the second is of what shards nothing
    reloads: bool = True  # what was saved is loaded into model and optimizer after they have trained on, not anew alone
    # What is sharded, and which bits come of it.
    stage: int | None = None  # ZeRO stage: what is sharded; None: nothing, a gradient synchronizer
    exact_memory: bool = False  # between events it holds what its stage needs, and no buffer beside it
    # And cut as one of SLICES says (`properties.judging.slices`), every rank holds that to the byte.
    sharded_by: str | None = None
    # A sharded optimizer keeps fp32 masters of 16-bit parameters itself, where it is asked to, or, "always", anyhow.
    masters: bool | str = False
    same_bits: bool = False  # its optimizer gives an element the bits that torch's plain one gives, however it is cut
    plain_bits: bool = True  # what a rank computes itself has plain torch's bits: no scaled loss, no compiled forward
    reduce_dtype: str | None = None  # gradients are reduced in this dtype, one of REDUCTIONS, unless their own is wider
    # And their means may be kept, clipped and stepped in this one; None: in the one in which they are reduced.
    gradient_dtype: str | None = None
    # Gradients of every dtype travel in this one, of 16 bits (oracle.program.WIRES), and may be added up and divided in
    # it or in their own: compressed, as by a hook that casts. What is drawn fits it.
    wire_dtype: str | None = None
    # What it costs.
    bucket_cap: bool = False  # the constructor takes a cap, and the result does not depend on it
    cap_from: str = CAP_FROM[0]  # from when on no bucket exceeds the cap, one of CAP_FROM
    cost: bool = False  # a step moves what its stage needs on one level, and what is far below the cap all at once
    schedule: str | None = None  # which of SCHEDULES a step of stage 1 or 3 is; None: it is not said which
    overlaps: bool = False  # reductions are launched while backward runs, none waited for before the next is launched
    # What is no data parallelism.
    kernels: bool = False  # a namespace of kernels: P17 and nothing else
    collectives: tuple[str, ...] = ()  # it wraps these collectives, and is held against P14 and nothing else
    differentiable: bool = False  # and backward goes through them
    integers: bool = False  # and they are given int64

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kinds = getattr(self, field.name), get_args(field.type) or (field.type,)
            if field.type in _WORDS and type(value) not in kinds:
                raise ValueError(f"claims: {field.name} is {_WORDS[field.type]}, not {on_one_line(value)}")
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
    known = [field.name for field in fields(Claims)]
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
