"""The implementations that ship with Lockstep, and the look-up of any implementation by name."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lockstep.properties.claim import Shape, on_one_line
from lockstep.properties.claims import SHARDS_PARAMETERS, Claims, read_claims
from lockstep.properties.ranks.names import Call
from lockstep.worlds.contract import Job, World

CORRECT = (
    "lockstep.impls.naive:NaiveDataParallel",
    "lockstep.impls.naive:NaiveAccumulation",
    "lockstep.impls.joined:Joined",
    "lockstep.impls.static_buckets:StaticBuckets",
    "lockstep.impls.main_grad_buckets:MainGradBuckets",
    "lockstep.impls.zero1:Zero1",
    "lockstep.impls.zero2:Zero2",
    "lockstep.impls.zero3:Zero3",
    "lockstep.impls.frameworks.torch_ddp:TorchDDP",
    "lockstep.impls.frameworks.torch_ddp:TorchDDPFindUnused",
    "lockstep.impls.frameworks.torch_ddp:TorchDDPBucketView",
    "lockstep.impls.frameworks.fsdp1:FSDP1",
    "lockstep.impls.frameworks.fsdp2:FSDP2",
    "lockstep.impls.frameworks.zero_redundancy:ZeroRedundancy",
)
WRAPPERS = ("lockstep.impls.collective_wrappers:Collectives",)
SAMPLERS = (
    "lockstep.impls.dealing:StridedSampler",
    "lockstep.impls.dealing:StridedLoader",
    "lockstep.impls.frameworks.torch_data:TorchSampler",
    "lockstep.impls.frameworks.torch_data:TorchLoader",
)
LOOPS = (
    "lockstep.impls.training_loop:TrainingLoop",
    "lockstep.impls.training_loop:PerRank",
    "lockstep.impls.training_loop:PerMicroBatch",
)
EXPERTS = (
    "lockstep.impls.experts:ExpertParallel",
    "lockstep.impls.experts:MeanOverGroup",
)
# Other options of the same packages. They are correct, and checked only if they are named.
OPTIONS = (
    "lockstep.impls.frameworks.torch_ddp:TorchDDPStaticGraph",
    "lockstep.impls.frameworks.torch_ddp:TorchDDPHook",
    "lockstep.impls.frameworks.torch_ddp:TorchDDPCompressed",
    "lockstep.impls.frameworks.replicate:Replicate",
    "lockstep.impls.frameworks.fsdp1:FSDP1Compressed",
    "lockstep.impls.frameworks.fsdp1:FSDP1Hybrid",
    "lockstep.impls.frameworks.fsdp1:FSDP1ShardsGradients",
    "lockstep.impls.frameworks.fsdp1:FSDP1ShardsNothing",
    "lockstep.impls.frameworks.fsdp2:FSDP2KeepsParameters",
    "lockstep.impls.frameworks.fsdp2:FSDP2ReducesInDouble",
    "lockstep.impls.frameworks.fsdp2:FSDP2Compressed",
    "lockstep.impls.frameworks.zero_redundancy:ZeroRedundancyBucketView",
)
# An example takes up to ten times as long with these. In short runs they get a tenth of the examples.
SLOW = tuple(name for name in (*CORRECT, *OPTIONS) if ".fsdp" in name)
KERNELS = ("lockstep.impls.kernels.suite:Kernels",)
WRONG = (
    "lockstep.impls.hook:HookDataParallel",
    "lockstep.impls.async_hook:AsyncHookDataParallel",
    "lockstep.impls.hook_order_buckets:HookOrderBuckets",
)


@dataclass(frozen=True)
class Implementation:
    """An implementation under test: its name ("module:attribute"), its claims, and its known fault, if any."""

    name: str
    claims: Claims
    known_fault: str | None = None
    finish: Call | None = None  # the call that ends a synchronization
    start: Call | None = None  # the call before the forward of a synchronizing micro-batch
    before: Call | None = None  # the call before the backward of a synchronizing micro-batch
    after: bool = False  # true for a function without a wrapper, `finish`, that is called with the model after backward
    cap: str | None = None  # the constructor argument that takes a bucket cap
    group: str | None = None  # the constructor argument that takes the ranks to train on
    takes: tuple[str, ...] = ()  # other constructor arguments, see `properties.ranks.adapter.optional_arguments`
    zero_grad: bool = False  # true if it has a `zero_grad` that is not the module's
    offers: tuple[str, ...] = ()  # the methods of `properties.sharded.Sharded` that a class has
    undeclared: tuple[str, ...] = ()  # the claims that it does not declare
    shape: Shape | None = None  # its shape seen from outside; None: not examined
    takes_one: bool = False  # true if its forward takes one argument, so that a model's inputs come in one tuple
    perhaps: tuple[str, ...] = ()  # further calls that may be meant to end a synchronization; they are not made
    plain: str = ""  # the constructor argument of a sharded optimizer that takes the class of the plain one
    made: bool = False  # true if a function makes the wrapper, so that `finish` and `zero_grad` are not known before

    @property
    def short(self) -> str:
        """The attribute's name alone."""
        return self.name.rpartition(":")[2]


# For each family of laws, the function that constructs an implementation once.
TRIED_OUT = {
    "": "lockstep.properties.ranks.program:try_out",
    "P19": "lockstep.properties.loops.rank:try_out",
    "P20": "lockstep.properties.data.rank:try_out",
    "P21": "lockstep.properties.experts.rank:try_out",
}
NOT_FOUND = "NotFound: "  # the beginning of the message of a `properties.ranks.lookup.NotFound` in a rank's report


def as_found(implementation: Implementation) -> str:
    """One line on how the implementation will be used, as far as its shape tells, so that wrong guesses are visible."""
    if implementation.claims.sampler:
        return _as_found_of_samplers(implementation.claims)
    if implementation.claims.loop:
        return _as_found_of_loops(implementation.claims)
    if implementation.claims.experts:
        return _as_found_of_experts(implementation.claims)
    if implementation.claims.family:
        return ""
    if implementation.made:
        return "a function; the methods of what it makes are looked for on the ranks"
    if implementation.claims.is_optimizer:
        return _as_found_of_optimizers(implementation.claims)
    last = f"after {implementation.finish}" if implementation.finish else "when backward returns"
    found = [f"gradients are final {last}"]
    if implementation.after:
        found = [f"a function, called after backward: {implementation.finish}; ranks are given rank 0's model before"]
    found += [f"{implementation.start} is called before each forward"] * (implementation.start is not None)
    found += [f"{implementation.before} is called before each backward"] * (implementation.before is not None)
    found += [f"{call} is not called" for call in implementation.perhaps]
    if implementation.shape is not None and implementation.shape.shards:
        found += ["parameters of plain layers are in pieces, as of ZeRO's stage 3"]
    if implementation.claims.plain_layers:
        found += ["it shards only layers that it knows, so models are made of them"]
    found += ["its forward takes one argument, so a model's inputs come in one tuple"] * implementation.takes_one
    found += [f"{implementation.cap} takes the bucket cap"] * (implementation.cap is not None)
    found += [f"{implementation.group} takes the ranks to train on"] * (implementation.group is not None)
    return "; ".join(found)


def _as_found_of_optimizers(claims: Claims) -> str:
    found = ["a sharded optimizer"]
    found += ["its step averages gradients" if claims.averages_in_step else "gradients are averaged before its step"]
    found += ["it has an add_param_group"] * claims.adds_groups + ["its step takes a closure"] * claims.closures
    saves = {None: "nobody saves its state", "rank 0": "rank 0 saves the state of all"}
    return "; ".join([*found, saves.get(claims.saved_by, "each rank saves its own state")])


def _as_found_of_samplers(claims: Claims) -> str:
    found = ["taken for a sampler", f"it gives {'batches' if claims.batches else 'single samples'}"]
    found += [f'the remainder: "{claims.remainder}"' + ', or "drop" with drop_last' * claims.drops_last]
    found += ["it shuffles if asked to"] * claims.shuffles
    found += (
        [
            f"what is saved goes on on {'the' if claims.resumes == 'same ranks' else ''} {claims.resumes}".replace(
                "  ", " "
            )
        ]
        if claims.resumes
        else []
    )
    found += ["it gathers for metrics"] * claims.gathers
    return "; ".join(found)


def _as_found_of_loops(claims: Claims) -> str:
    over = {"tokens": "all tokens of a window", "rank": "each rank's tokens, then ranks"}
    found = ["taken for a training loop"]
    found += [f"the mean is over {over.get(claims.loss_mean, 'the tokens of each micro-batch, then micro-batches')}"]
    found += ["it clips the norm"] * claims.clips_norm + ["it steps a schedule"] * claims.follows_schedule
    return "; ".join([*found, *["it skips steps that overflow"] * claims.skips_overflow])


def _as_found_of_experts(claims: Claims) -> str:
    by = "all ranks" if claims.expert_divisor == "world" else "the ranks that have it"
    found = [
        "taken for a wrapper of dense parameters and experts",
        f"an expert's gradient is divided by the number of {by}",
    ]
    found += ["it clips the norm"] * claims.clips_experts + ["it saves the experts of all ranks"] * claims.saves_experts
    return "; ".join(found)


class Unusable(ValueError):
    """An implementation that cannot be tested. The message says why in one line."""


def look_up(names: Sequence[str], world: World, claims: Mapping[str, Any] | None = None) -> list[Implementation]:
    """The named implementations and their claims. They are imported on the world's ranks, never in this process.

    ``claims``: claims that replace the declared ones. Raises Unusable.
    """
    found = []
    for name in names:
        (report,) = world.run(Job("lockstep.properties.ranks.program:describe", json.dumps(name), 1))
        if report.result is None:
            assert report.error is not None
            message = " ".join(report.error.message.split())
            if message.startswith(NOT_FOUND):
                raise Unusable(message.removeprefix(NOT_FOUND))
            printed = [line.strip() for line in report.error.details.splitlines() if line.strip()]
            if report.error.kind == "died" and printed:
                message += f"; its output ends with {on_one_line(printed[-1])}"
            raise Unusable(f"{name}: importing it failed: {message}")
        told = report.result if claims is None else {**report.result, "claims": claims}
        if told["may_shard"] and _may_be_stage_3(_declared(told["claims"])):
            reports = world.run(Job("lockstep.properties.ranks.description:shards", json.dumps(name), 2))
            results = [each.result for each in reports if each.result is not None]
            seen = {what: any(each[what] for each in results) for what in ("shards", "plain_layers")}
            told = {**told, **seen}
        if told["optimizer"]:
            told = {**told, "optimizer": {**told["optimizer"], "averages_in_step": _averages_in_step(name, world)}}
        try:
            found.append(described(name, told))
        except (TypeError, ValueError) as error:
            raise Unusable(f"{name}: {error}") from None
        if claimed := found[-1].claims.optimizers:
            asked = json.dumps([name, claimed])
            (report,) = world.run(Job("lockstep.properties.ranks.optimizers:classes", asked, 1))
            if report.result is not None and report.result["wrong"]:
                raise Unusable(f"{name}: {report.result['wrong']}")
    return found


def _averages_in_step(name: str, world: World) -> bool:
    """True if the step of a sharded optimizer averages gradients.

    That is, after a step on two ranks with different gradients, the parameters depend on both. False if this cannot be
    tested.
    """
    if (world.ranks or 2) < 2:
        return False
    outcome = world.run(Job("lockstep.properties.ranks.optimizers:probe_step", json.dumps(name), 2))
    return any(report.result is not None and report.result["mixed"] for report in outcome)


def _may_be_stage_3(declared: Mapping[str, Any]) -> bool:
    """True if the claims leave open if an implementation shards parameters, or of which models."""
    return "stage" not in declared or (declared["stage"] == SHARDS_PARAMETERS and "plain_layers" not in declared)


def _declared(claims: Any) -> Mapping[str, Any]:
    """The declared claims; empty if they are no mapping."""
    return claims if isinstance(claims, Mapping) else {}


def try_out(found: Iterable[Implementation], world: World) -> None:
    """Construct each implementation once, on one rank.

    An implementation that cannot be called would break every law with a long report. Raises Unusable. The world is
    closed afterwards, so it begins afresh.
    """
    try:
        for each in found:
            if each.claims.family in TRIED_OUT:
                asked = {"implementation": each.name, "accumulates": each.claims.accumulation}
                asked |= {"batch": int(each.claims.batches)}
                (report,) = world.run(Job(TRIED_OUT[each.claims.family], json.dumps(asked), 1))
                if report.result is not None and report.result["wrong"]:
                    raise Unusable(f"{each.name}: {report.result['wrong']}")
    finally:
        world.close()


def described(name: str, told: Mapping[str, Any]) -> Implementation:
    """The implementation described by `properties.ranks.description.describe`. Raises TypeError or ValueError."""
    shape = {name: told[name] for name in ("has_no_sync", "has_join", "makes_optimizer", "zeroes_otherwise")}
    takes: dict[str, Any] = {"takes_cap": told["cap"] is not None, "takes_group": told["group"] is not None}
    takes |= {name: told[name] for name in ("takes_replicas", "takes_keywords", "like_its_model")}
    takes |= {name: told.get(name, False) for name in ("shards", "plain_layers")}
    takes |= {"is_optimizer": bool(told["optimizer"]), **told["optimizer"], **told["sampler"], **told["loop"]}
    takes |= told["experts"]
    finishes = None if told["made"] else told["finish"] is not None
    seen = Shape(**shape, **takes, finishes=finishes)
    claims = read_claims(told["claims"], seen)
    known = {
        name: told[name]
        for name in ("known_fault", "cap", "group", "zero_grad", "offers", "made", "takes_one", "after", "plain")
    }
    known |= {name: told[name] and Call(*told[name]) for name in ("finish", "start", "before")}
    return Implementation(
        name,
        claims,
        **known,
        takes=tuple(told["takes"]),
        undeclared=tuple(each.name for each in fields(Claims) if each.name not in (told["claims"] or ())),
        shape=seen,
        perhaps=tuple(told["perhaps"]),
    )
