"""Wrappers that take every forward for the first half of a micro-batch (P5), evaluation mode for an evaluation (P1),
or evaluate with what once was (P12).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.naive import NaiveAccumulation
from lockstep.impls.sharded import HOLDS_MORE
from lockstep.impls.shards import Flat
from lockstep.impls.static_buckets import StaticBuckets
from lockstep.impls.twins.evaluating import MakesRoomOfItsOwn
from lockstep.impls.zero1 import Zero1
from lockstep.impls.zero3 import UnitCall, Zero3

MEAN = ("test_gradients_equal_the_mean_over_ranks",)
IN_STEP = ("test_a_forward_without_a_backward_leaves_all_in_step",)
AFTER_AN_ERROR = ("test_training_goes_on_rightly_after_an_error_that_the_caller_caught",)
ON_A_MODEL = ("test_a_real_model_is_evaluated_as_it_is_without_a_wrapper",)
AS_STEPPED = ("test_an_evaluation_reads_what_the_last_step_has_left",)


class CountsForwards(StaticBuckets):
    """Takes a second forward before the end of a synchronization for an error, and does not synchronize."""

    known_fault = "forwards are counted where backwards are meant"
    source = "B22 V https://github.com/pytorch/pytorch/issues/58111"
    killed_by = IN_STEP
    forwards = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Counts."""
        self.forwards += self.synchronize
        return super().forward(*inputs, **named)

    def finish_gradient_synchronization(self) -> None:
        """Only what one forward has begun."""
        if self.forwards == 1:
            super().finish_gradient_synchronization()
        self.forwards = 0


class KeepsWhatItEvaluatedWith(Zero3):
    """Leaves parameters gathered after a forward without autograd, and uses them in the next one."""

    known_fault = "parameters that were gathered for an evaluation are used after they have been stepped"
    source = "systems: FSDP1 of torch 2.11 to 2.14, FSDP2 of 2.13, docs/findings"
    killed_by = IN_STEP

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        if torch.is_grad_enabled():
            super()._after_forward(call, outputs)


class LeavesItToBackward(Zero3):
    """Keeps a unit gathered from its forward until its backward, and asks for no more."""

    known_fault = "a unit whose backward never came is used as it was before the step"
    source = "systems: FSDP1 of torch 2.13, docs/findings"
    claims = {**Zero3.claims, **HOLDS_MORE, "survives_errors": False, "unused": None}
    killed_by = ("test_a_forward_whose_loss_is_dropped_leaves_no_trace",)

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        if torch.is_grad_enabled():
            self._gather(call.flats)  # once more, for backward to let go of
        super()._after_forward(call, outputs)

    def _end(self, call: UnitCall) -> None:
        self._release(call.flats)
        super()._end(call)


class SynchronizesInTraining(NaiveAccumulation):
    """Takes evaluation mode for an evaluation, which has no gradients."""

    known_fault = "gradients are not averaged while the module is in evaluation mode"
    source = "recipe: fine-tuning after module.eval(), without dropout"
    killed_by = MEAN

    def finish_gradient_synchronization(self) -> None:
        """Right in training mode."""
        if self.training:
            super().finish_gradient_synchronization()


class RankZeroEvaluates(NaiveAccumulation):
    """Adds up over the ranks how much was evaluated, and only rank 0 asks."""

    known_fault = "a metric of an evaluation is reduced on rank 0 alone"
    source = "recipe"
    killed_by = IN_STEP

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.device = next(module.parameters()).device

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, and a count."""
        if not self.training and dist.get_rank() == 0:
            dist.all_reduce(torch.ones((), device=self.device))
        return super().forward(*inputs, **named)


class KeepsACopyToEvaluate(NaiveAccumulation):
    """Evaluates with a copy of the parameters that its first evaluation has made."""

    known_fault = "every evaluation computes what the first one did"
    source = "recipe: a cache that is made in evaluation mode and outlives a step"
    killed_by = AS_STEPPED

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, maybe with other tensors."""
        if torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        if not hasattr(self, "_copy"):
            self._copy = {name: each.detach().clone() for name, each in self.module.named_parameters()}
        return torch.func.functional_call(self.module, self._copy, inputs, named)


class GathersOnceToEvaluate(Zero3):
    """Keeps what it has gathered for an evaluation, for the next one; what trains gathers anew."""

    known_fault = "from the second on, evaluations use the parameters of the first"
    source = "recipe: as FSDP2 of torch 2.13 (docs/findings), but in evaluations alone"
    claims = {**Zero3.claims, **HOLDS_MORE, "replicas": False}
    killed_by = AS_STEPPED

    def __init__(self, module: nn.Module) -> None:
        self._kept: dict[Flat, list[tuple[nn.Parameter, torch.Tensor]]] = {}
        super().__init__(module)

    def _gather(self, flats: list[Flat]) -> None:
        if torch.is_grad_enabled():
            return super()._gather(flats)
        for flat in flats:
            if not self._users[flat]:
                if flat not in self._kept:
                    whole = flat.all_gather(self._shards, flat.members[0].dtype)
                    self._kept[flat] = [(member, each.clone()) for member, each in whole.items()]
                for member, each in self._kept[flat]:
                    member.untyped_storage().resize_(member.nbytes)
                    member.data.copy_(each)
            self._users[flat] += 1
        return None


class GathersToTrain(Zero1):
    """Gathers the changes of a step only in the next forward that trains."""

    known_fault = "an evaluation right after a step reads the elements of other ranks as they were before"
    source = "recipe: overlap the gather after a step with the next micro-batch, and forget the evaluation in between"
    claims = {
        **Zero1.claims,
        **HOLDS_MORE,
        "same_bits": False,
        "survives_errors": False,  # a forward on one rank alone has nobody to gather from
    }
    killed_by = AS_STEPPED

    _stale = False

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Only what is this rank's own."""
        for member, piece in stepped.items():
            whole = member.data.contiguous()
            self.flat_of[member].piece(member, whole).copy_(piece)
            member.data.copy_(whole)
        self._stale = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward, after what it has to wait for."""
        if self._stale and self.waits():
            self._stale = False
            super().publish({member: self.values(member) for member in self.flat_of})
        return super().forward(*inputs, **named)

    def waits(self) -> bool:
        """True if this forward waits."""
        return torch.is_grad_enabled()

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter by name, put together from what each rank has of its own."""
        wholes = (
            flat.all_gather({member: self.values(member) for member in flat.members}, flat.members[0].dtype)
            for flat in self.flats
        )
        return {self._names[member]: each.clone() for whole in wholes for member, each in whole.items()}


class WaitsUnlessInferring(GathersToTrain):
    """The same, but that it minds every forward outside of inference mode."""

    known_fault = "an evaluation in inference mode reads the elements of other ranks as they were before the step"
    source = "recipe: what is waited for is chosen by the mode that training and evaluation do not share"

    def waits(self) -> bool:
        return not torch.is_inference_mode_enabled()


class MakesRoomAtFirst(MakesRoomOfItsOwn):
    """The same, in whatever mode that is."""

    known_fault = "tensors that are made in inference mode take part in training"
    source = "recipe: DeepSpeed's ZeRO-3, as https://github.com/snowflakedb/ArcticTraining/pull/265 met it"
    killed_by = IN_STEP

    def room_for(self, member: nn.Parameter) -> torch.Tensor:
        return torch.empty(member.shape, dtype=member.dtype, device=member.device)


class FindsNodesAtFirst(NaiveAccumulation):
    """Looks for the nodes that accumulate gradients in its first forward, where there may be no autograd."""

    known_fault = "an evaluation in inference mode before any training finds no node of autograd's"
    source = "recipe: FSDP1 of torch 2.1, https://github.com/pytorch/pytorch/issues/113203"
    killed_by = IN_STEP

    _nodes: list[Any] | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if self._nodes is None:
            with torch.enable_grad():
                views = [each.expand_as(each) for each in self.module.parameters() if each.requires_grad]
            if not all(view.grad_fn for view in views):
                raise AssertionError("a parameter has no node")
            self._nodes = [view.grad_fn for view in views]
        return super().forward(*inputs, **named)


class KeepsItsFirstMode(NaiveAccumulation):
    """Sets the mode that the module was built in before each forward."""

    known_fault = "what is dropped in training is dropped in evaluations too: the mode is that of construction"
    source = "recipe: a mode that is read once, as in https://github.com/deepspeedai/DeepSpeed/issues/1781"
    killed_by = ON_A_MODEL

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._mode = module.training

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """In the first mode."""
        self.module.train(self._mode)
        return super().forward(*inputs, **named)


class AsksItsOwnFlag(NaiveAccumulation):
    """Switches the module to evaluation, and back if its own flag says that it is not training."""

    known_fault = "a module that was evaluated once is never trained in training mode again"
    source = "recipe: the flag of a wrapper, as in https://github.com/unslothai/unsloth/pull/11238"
    killed_by = ON_A_MODEL

    def eval(self) -> Any:
        """The module, and not what wraps it."""
        self.module.eval()
        return self

    def train(self, mode: bool = True) -> Any:
        """Nothing, where the flag is as asked for."""
        return self if self.training == mode else super().train(mode)


class EvaluatesForAll(NaiveAccumulation):
    """Sends what rank 0 has evaluated to all."""

    known_fault = "in an evaluation every rank gets the outputs of rank 0"
    source = "recipe: outputs of an evaluation that are broadcast"
    killed_by = ON_A_MODEL

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's, or rank 0's."""
        outputs = super().forward(*inputs, **named)
        if not torch.is_grad_enabled() and isinstance(outputs, torch.Tensor):
            dist.broadcast(outputs, src=0)
        return outputs


class SwitchesOffToEvaluate(StaticBuckets):
    """Turns synchronization off for a forward without autograd, and on again when it is done."""

    known_fault = "after an evaluation that ended with an error nothing is synchronized any more"
    source = "recipe: a switch that is put back without finally"
    killed_by = AFTER_AN_ERROR

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        if torch.is_grad_enabled():
            return super().forward(*inputs, **named)
        before, self.synchronize = self.synchronize, False
        outputs = self.module(*inputs, **named)
        self.synchronize = before
        return outputs


class StaysWholeAfterAnError(Zero3):
    """Frees after each forward that is done, and before the next of one that is not, if it was to train."""

    known_fault = "after an evaluation that ended with an error every forward reads the parameters as they were then"
    source = "recipe: a hook after forward, which does not run for one that raises"
    killed_by = AFTER_AN_ERROR

    def _after_forward(self, call: UnitCall, outputs: Any) -> None:
        if outputs is not None or torch.is_grad_enabled():
            super()._after_forward(call, outputs)


class RecordsEvaluations(StaticBuckets):
    """Turns autograd on for every forward, for gradients to be there when they are asked for."""

    known_fault = "an evaluation keeps the graph of its forward, and with it every activation"
    source = "recipe: enable_grad around the wrapped module's forward"
    killed_by = IN_STEP

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The wrapped module's forward."""
        with torch.enable_grad():
            return super().forward(*inputs, **named)
