"""What every rank runs: the scenario's program on an implementation, observed from outside.

The worlds call these functions by name; in comes JSON, out go plain data and NumPy arrays.
"""

import contextlib
import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.oracle.events import (
    Backward,
    Clip,
    EndJoin,
    Evaluate,
    Finish,
    Freeze,
    Join,
    Load,
    Raise,
    Replace,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    Unscale,
    Write,
    ZeroGrad,
)
from lockstep.oracle.forwards import by_forward
from lockstep.oracle.initial import initial_parameters
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import members
from lockstep.properties.companion import companion, partner, turns
from lockstep.properties.conditions import Conditions
from lockstep.properties.failure_place import note
from lockstep.properties.part import Part
from lockstep.properties.ranks import adapter, checkpoint, description
from lockstep.properties.ranks.evaluating import Evaluating
from lockstep.properties.ranks.losses import loss_of_gradients, loss_of_parameters
from lockstep.properties.ranks.probes import CallersError, Probe, to_numpy
from lockstep.properties.seen import Seen


@lru_cache(maxsize=8)
def read(payload: str) -> tuple[str, Scenario, Conditions]:
    """The implementation's name, the scenario, how to run it; read once for all ranks of the simulated world."""
    request = json.loads(payload)
    return request.pop("implementation"), Scenario.from_json(request.pop("scenario")), Conditions.of(request)


def run_program(payload: str, rank: int, world_size: int, kind: "Callable[..., Rank] | None" = None) -> Seen:
    """Runs a program as a `Rank`, or a ``kind`` of it that notes more. ``payload``: the implementation's name, the
    scenario, and those of `Conditions` that are not as usual. What is outside of the group that trains sees nothing.
    """
    name, scenario, conditions = read(payload)
    group, rank = members.enter(scenario, rank)
    if rank < 0:
        return {}
    ranks_program = (kind or Rank)(name, scenario, rank, group, conditions)
    if where := conditions.beside or conditions.joint:
        its = companion(scenario) if conditions.beside else partner(scenario)
        roles, since, asks = conditions.roles, conditions.equal_from, conditions.asks_for_masters
        other = Rank(name, its, rank, group, Conditions(roles=roles, equal_from=since, asks_for_masters=asks))
        (run_in_turn if conditions.beside else run_jointly)(ranks_program, other, where)
        return ranks_program.seen
    part, place = conditions.part, -1
    try:
        ranks_program.construct()
        ranks_program.take_up(part)
        for place in range(part.begin, part.stop(scenario) + 1):
            if place in part.saves:
                ranks_program.seen["saved"] = checkpoint.write(ranks_program.save())
            if place in conditions.moved:
                ranks_program.move()
            if place < part.stop(scenario):
                ranks_program.run(place)
    except Exception as error:
        error.add_note(note(place, scenario.program, ranks_program.constructed_as))
        raise
    return ranks_program.seen


def run_in_turn(this: "Rank", other: "Rank", where: str) -> None:
    """Both programs, of which the other's turns come right "before" or "after" this one's."""
    both = _both(this, other, where)
    running, place = this, -1
    try:
        for running in both:
            running.construct()
        for pair in itertools.zip_longest(*(turns(each.scenario) for each in both), fillvalue=()):
            for running, turn in zip(both, pair, strict=True):
                for place in turn:
                    running.run(place)
    except Exception as error:
        error.add_note(note(place, running.scenario.program, running.constructed_as))
        raise


def run_jointly(this: "Rank", other: "Rank", where: str) -> None:
    """Both programs event by event, the other's right "before" or "after" this one's; a micro-batch has the forwards of
    both and then one backward, of the sum of their losses.
    """
    first, second = both = _both(this, other, where)
    running, place = this, -1
    try:
        for running in both:
            running.construct()
        for place, event in enumerate(this.scenario.program):
            if isinstance(event, Backward):
                running = this
                with first.micro_batch(place) as (one,), second.micro_batch(place) as (its,):
                    (one + its).backward()
            else:
                for running in both:
                    running.run(place)
    except Exception as error:
        error.add_note(note(place, running.scenario.program, running.constructed_as))
        raise


def _both(this: "Rank", other: "Rank", where: str) -> tuple["Rank", "Rank"]:
    """In the order of their turns; the collectives of the other count as this one's."""
    other.seen |= {"built": this.seen["built"], "looks": this.seen["looks"]}
    return (this, other) if where == "after" else (other, this)


class Rank(Evaluating):
    """One rank's run through the events of a program."""

    def run(self, place: int) -> None:
        """One event, and what is seen after it."""
        self.place, event, seen = place, self.scenario.program[place], self.seen
        looks = place >= self.conditions.part.looks
        if self.role in self.scenario.gone(place):
            if isinstance(event, Backward):
                next(self.batches)
                self.window.close()
            return
        if place in self.conditions.alone and self.role == self.conditions.loner:
            seen["evaluated"][place] = self.act_alone()
        if place in self.conditions.duplicated:
            seen["duplicates"][place] = self.evaluate_duplicates()
        if place in self.conditions.swapped:
            seen["swapped"][place] = self.evaluate_swapped()
        if place in self.conditions.dropped:
            self.drop(local=isinstance(event, Backward) and not event.synchronize)
        match event:
            case Backward():
                self.backward(place)
                if place in self.conditions.metrics:
                    self.add_up_a_metric()
            case Finish():
                adapter.finish(self.wrapped)
                if self.conditions.keeps_gradients:
                    seen["kept"][place] = self.all_kept()
            case Unscale():
                self.training.unscale()
            case Clip():
                seen["norms"][place] = to_numpy(self.clip(event))
            case Step():
                self.training.step(event.groups)
                if looks and not self.stands:  # what is stepped may be none of the model's own tensors
                    full = "full_optimizer_state" in self.offers
                    held = self.look(self.wrapped.full_optimizer_state) if full else None
                    seen["states"][place] = self.training.states(held)
                if self.training.scale is not None:
                    seen["loss_scales"][place] = self.training.scale
            case ZeroGrad() if place not in self.conditions.zeroed_late:
                self.zero_grad(event.set_to_none)
            case SetHyperparameters():
                self.training.set(event)
            case Freeze():
                self.frozen = event.of_frozen(self.frozen)
                self.freeze()
            case Replace():
                self.replace(event)
            case Write():
                tensors = self.probe.in_order()
                for tensor in (tensors[index] for index in event.parameters):
                    tensor.data.copy_(0 - tensor.data)
            case SaveAndLoad():
                weights, rest = self.file or self.save()
                self.file = None
                self.construct()
                self.training.load(weights, rest if event.optimizer else None)
            case Save():
                self.saved = self.save()
            case Load():
                self.zero_grad(set_to_none=True)
                weights, rest = copy.deepcopy(self.saved)  # a file stays as it is
                self.training.load(weights, rest if event.optimizer else None)
            case Evaluate():
                seen["evaluated"][place] = self.evaluate(event)
            case Join():
                self.window.enter_context(adapter.joining(self.wrapped, event.divide_by))
            case EndJoin():
                self.window.close()
                self.zero_grad(set_to_none=True)
            case Raise():
                self.fail(event)
        self.note_random_numbers(place)
        if place in self.conditions.copied:
            self.copy_gradients()
        left_open = isinstance(event, Clip) and self.scenario.overflowed(place)
        if looks and isinstance(event, (Finish, Unscale, Clip)) and not left_open:
            seen["gradients"][place] = self.gradients()
        elif looks and isinstance(event, (Step, Write, SaveAndLoad, Load, EndJoin)):
            seen["parameters"][place] = self.parameters()

    def take_up(self, part: Part) -> None:
        """Skips what ranks of another world have done before this part, and reads the file in which they left it."""
        for event in self.scenario.program[: part.begin]:
            if isinstance(event, Backward):
                next(self.batches)
            elif isinstance(event, Freeze):
                self.frozen = event.of_frozen(self.frozen)
        self.file = checkpoint.read(part.file) if part.file else None
        if part.file:
            self.seen.setdefault("initial", None)

    def replace(self, event: Replace) -> None:
        """New tensors with the values of the old, under every name of theirs and in the caller's optimizer."""
        old = self.probe.in_order()
        for tensor in event.parameters:
            new = torch.nn.Parameter(old[tensor].detach().clone(), requires_grad=old[tensor].requires_grad)
            for index in self.scenario.names(tensor):
                self.probe.put(index, new)
            self.watched.discard(tensor)
            self.training.replace(tensor, new)
        self.freeze()

    def backward(self, place: int) -> None:
        """The forwards and backwards of the next micro-batch."""
        with self.micro_batch(place) as losses:
            for number, loss in enumerate(losses, 1):
                loss.backward(retain_graph=any(loss is other for other in losses[number:]))

    @contextlib.contextmanager
    def micro_batch(self, place: int) -> Iterator[list[torch.Tensor]]:
        """The forwards of the next micro-batch, whose losses go backward inside this context, one after the other."""
        self.place, event = place, self.scenario.program[place]
        assert isinstance(event, Backward)
        batch, numbers = next(self.batches)
        order = self.scenario.order(batch, self.role)
        self.seen["hooks"].append([])
        *first, last = (self.tensors(values) for values in by_forward(numbers, event.forwards))
        if self.role in event.overflow:
            last = self.overflowing(last, order)
        if event.synchronize:
            self.kept.clear()
            self.kept_once = event.forwards == event.backwards == event.passes == 1
        begin = self.issued()
        entered, self.no_sync = self.no_sync, None
        with entered or contextlib.ExitStack() as no_sync:
            if entered is None:
                no_sync.enter_context(adapter.synchronizing(self.wrapped, event.synchronize))
            if event.nested:
                with self.wrapped.no_sync():
                    pass
            losses = [self.call(inputs, order) for inputs in first]
            increment = batch * self.scenario.world_size + self.rank + 1
            final = self.last_loss(last, order, increment)
            losses = [sum(losses, final)] if event.backwards == 1 else [*losses, final]
            late = self.scenario.program[place - 1] if place - 1 in self.conditions.zeroed_late else None
            if isinstance(late, ZeroGrad):
                self.zero_grad(late.set_to_none)
            if place in self.conditions.measured:
                self.evaluate(Evaluate(switch=False))
            yield [self.scaled(loss) for loss in losses] * event.passes
            self.no_sync = no_sync.pop_all() if self.scenario.stays_in_no_sync(place) else None
        if not event.synchronize:
            self.seen["local"].append((begin, self.issued()))
        if self.scenario.buffers:
            self.seen["buffers"][place] = [to_numpy(buffer) for buffer in self.probe.buffers()]

    def last_loss(self, inputs: list[torch.Tensor], order: Sequence[int], increment: int) -> torch.Tensor:
        """That of a micro-batch's last forward; or half of it, or nothing, and the rest the caller makes itself."""
        conditions = self.conditions
        halves = [values / 2 for values in inputs]
        if self.place in conditions.differentiated:
            given = [values.requires_grad_() for values in (halves if conditions.with_outputs else inputs)]
            # Forward reads all that is trained, and the loss is made of what was to be reached.
            trained = [index for index, parameter in enumerate(self.probe.in_order()) if parameter.requires_grad]
            others = [] if conditions.with_outputs else [index for index in trained if index not in order]
            # What goes through gradients alone comes to parameters that are factors of theirs the other way round.
            turns_round = not conditions.with_outputs and self.probe.kind == "linear"
            loss = self.call(given, [*order[:: -1 if turns_round else 1], *others], increment)
            taken = loss_of_gradients(loss, given, order)
            return loss + taken if conditions.with_outputs else taken
        if self.place not in conditions.halved:
            return self.call(inputs, order, increment)
        if conditions.half_first:
            return loss_of_parameters(self.probe, halves, order) + self.call(halves, order, increment)
        return self.call(halves, order, increment) + loss_of_parameters(self.probe, halves, order)

    def drop(self, local: bool) -> None:
        """A forward whose loss is NaN, and whose backward the caller leaves out. ``local``: inside ``no_sync``."""
        used = [index for index, parameter in enumerate(self.probe.in_order()) if parameter.requires_grad][::-1]
        inside = contextlib.nullcontext() if self.no_sync else adapter.synchronizing(self.wrapped, not local)
        with inside:
            self.call(self.filled_with(torch.nan), used)

    def tensors(self, numbers: Sequence[npt.NDArray[np.float64]]) -> list[torch.Tensor]:
        """Coefficients as the model takes them.

        Of the scenario's dtypes: outside of forward and backward a sharded implementation need not have parameters.
        """
        return [
            torch.tensor(values, dtype=getattr(torch, told.dtype), device=self.device)
            for values, told in zip(numbers, self.scenario.parameters, strict=True)
        ]

    def overflowing(self, inputs: list[torch.Tensor], used: Sequence[int]) -> list[torch.Tensor]:
        """The coefficients of a micro-batch that overflows."""
        if self.conditions.overflows in ("first", "last"):
            reached = [index for index in used if inputs[index].numel()]
            for index in reached[:1] if self.conditions.overflows == "first" else reached[-1:]:
                inputs[index].view(-1)[-1] = torch.inf
            return inputs
        return [torch.full_like(values, float(self.conditions.overflows)) for values in inputs]

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss, times the loss scale if there is one."""
        return loss if self.training.scale is None else loss * self.training.scale

    def fail(self, event: Raise) -> None:
        """A micro-batch of NaN that the caller's own error ends, and that the caller survives."""
        with contextlib.ExitStack() as no_sync:
            if event.nested:
                no_sync.enter_context(self.wrapped.no_sync())
            self.catch(event)
            self.no_sync = no_sync.pop_all() if self.scenario.stays_in_no_sync(self.place) else None

    def catch(self, event: Raise) -> None:
        """The micro-batch, up to the error, and what the caller does about it.

        Backward reaches what was registered last first, as it does in most models: buckets may be on their way by then.
        """
        parameters = self.probe.in_order()
        if event.rank in (None, self.role):
            inputs = self.filled_with(torch.nan)
            order = [index for index, parameter in enumerate(parameters) if parameter.requires_grad][::-1]
            saved = [buffer.clone() for buffer in self.probe.buffers()]
            self.seen["hooks"].append([])
            self.fails = event.where
            try:
                with adapter.synchronizing(self.wrapped, event.synchronize):
                    if event.where == "no_sync":
                        raise KeyboardInterrupt  # as Ctrl-C does, which is no Exception
                    if event.where == "evaluation":
                        self.evaluate(Evaluate(), fails="module")
                    else:
                        self.scaled(self.call(inputs, order, fails=event.where)).backward()
                if not event.drops_gradients:  # whose hooks and nodes there may be none of
                    self.seen["complaints"].append(f"the caller's own error in {event.where} never came to the caller")
            except (CallersError, KeyboardInterrupt):
                pass
            self.fails = ""
            self.seen["hooks"].pop()
            for buffer, values in zip(self.probe.buffers(), saved, strict=True):
                buffer.copy_(values)
        if event.drops_gradients:
            self.zero_grad(set_to_none=True)


def describe(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What can be told of an implementation (see `description.describe`); ``payload`` is its name."""
    return description.describe(json.loads(payload))


def try_out(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """What is ``wrong`` with how an implementation is to be called (see `adapter.wrong_call`)."""
    asked = json.loads(payload)
    scenario = Scenario(1, (Parameter((1,)),), (Backward(((0,),)), Finish()))
    probe = Probe(scenario, initial_parameters(scenario, rank), rank)
    try:
        return {"wrong": adapter.wrong_call(asked["implementation"], probe, scenario, asked["accumulates"])}
    except Exception:  # its own: the laws say what it is worth
        return {"wrong": ""}
