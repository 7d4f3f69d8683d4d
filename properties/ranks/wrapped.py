"""One rank's model wrapped in an implementation, and the observations of both from outside."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.oracle.fingerprint import coefficients
from lockstep.oracle.initial import initial_parameters
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM
from lockstep.properties.conditions import AS_USUAL, Conditions
from lockstep.properties.naming import parameter_name
from lockstep.properties.ranks import adapter, randomness, stepping
from lockstep.properties.ranks.optimizers import Averaged
from lockstep.properties.ranks.pieces import Pieces
from lockstep.properties.ranks.probes import CallersError, Inputs, Probe, to_numpy
from lockstep.properties.ranks.training import Training
from lockstep.properties.seen import Seen, Values

# The state of torch's optimizers with the shape of the parameter.
STATE = ("momentum_buffer", "exp_avg", "exp_avg_sq")


class Wrapped:
    """A model, its implementation and the caller's training loop. Loading a file constructs them anew.

    ``group``: the process group, see `properties.members.enter`. ``role``: the rank whose samples this rank uses.
    ``place``: the event that runs now. ``fails``: the place where its micro-batch must raise.
    """

    place = -1
    fails = ""

    def __init__(
        self, name: str, scenario: Scenario, rank: int, group: Any = None, conditions: Conditions = AS_USUAL
    ) -> None:
        self.name, self.scenario, self.rank, self.group, self.conditions = name, scenario, rank, group, conditions
        self.caller = scenario.caller
        self.constructed_as = ""  # in words, see `adapter.constructed_as`
        self.role = role = scenario.role(rank)
        self.seen = Seen(gradients={}, parameters={}, evaluated={}, norms={}, states={}, loss_scales={}, buffers={})
        self.seen |= Seen(swapped={}, duplicates={}, kept={}, copied=0, metrics={}, upcoming={}, hooks=[])
        self.seen |= Seen(built=[], looks=[], callers=[], local=[], stood=False, complaints=[])
        self.frozen = {index for index, parameter in enumerate(scenario.parameters) if not parameter.trainable}
        self.file: tuple[Any, Any] | None = None
        self.saved: tuple[Any, Any] = (None, None)  # loaded by a Load event
        self.duplicates: list[Probe] = []  # copies of the model, made by the caller
        self.window = contextlib.ExitStack()  # open from Join until this rank has run out of micro-batches
        # The context of the last micro-batch, if the next one runs in it too.
        self.no_sync: contextlib.ExitStack | None = None
        self.batches = iter(enumerate(coefficients(scenario, role)))

    def construct(self) -> None:
        """Make a model and wrap it in the implementation."""
        initial = initial_parameters(self.scenario, self.rank)
        self.probe = Probe(self.scenario, initial, self.rank, self.conditions.in_layers)
        if self.scenario.registered:
            self.probe.register_in(self.scenario.registered)
        self.watched: dict[int, nn.Parameter] = {}
        self.pieces: Pieces | None = None
        self.freeze()
        if (differs := self.scenario.differs) is not None and self.rank == differs.rank:
            self.probe.differ(differs.way, differs.parameter)
        dotted = {parameter: name for name, parameter in self.probe.named_parameters()}
        ordered = [dotted[parameter] for parameter in self.probe.in_order()]
        self.device = next((parameter.device for parameter in self.probe.in_order()), torch.device("cpu"))
        self.called = False
        if self.caller.seeded and -2 not in self.seen["upcoming"]:
            randomness.begin(self.rank)
            self.note_random_numbers(-2)
        early = self.training_before(ordered) if self.caller.makes_optimizer == "before" else None
        if self.caller.hooked_before:
            self.set_hooks()
        wholes = [each.detach().clone() for each in self.probe.in_order()] if self.conditions.pieces else []
        begin = _recorded()
        self.constructed_as = adapter.constructed_as(self.name, self.scenario)
        self.wrapped = adapter.construct(self.name, self.probe, self.scenario, self.group)
        self.note_random_numbers(self.place)
        if isinstance(self.wrapped, Averaged):
            self.wrapped.heed(self.conditions.averages_in_step, self.conditions.zeros, self.conditions.withheld)
        self.offers = adapter.offers(self.wrapped)
        if wholes and "full_gradients" not in self.offers:
            self.freeze()  # again, because the parameters may be other tensors now
            self.pieces = Pieces(ordered, wholes, self.probe.in_order(), self.group)
        self.takes_one = adapter.takes_one(self.wrapped)
        self.stands = self.caller.asks_the_wrapper and next(self.wrapped.parameters(), None) is not None
        self.seen["stood"] = self.stands
        self.asked = self.wrapped if self.stands else self.probe
        if not self.caller.hooked_before:
            self.set_hooks()
        self.kept: dict[torch.Tensor, torch.Tensor | None] = {}
        self.kept_once = False  # true if backward of this micro-batch reaches each parameter once
        for parameter in self.probe.tensors() if self.caller.keeps_gradients else ():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.keep)
        if self.scenario.mode == "eval":
            self.switch("eval")
        given = (ordered, self.wrapped, self.offers, self.conditions)
        self.training = Training(self.scenario, self.probe, *given, asked=self.asked)
        self.training.complaints = self.seen["complaints"]
        if early is not None:
            self.training.optimizers, self.training.held = early.optimizers, early.held
        self.seen["built"].append((begin, _recorded()))
        if self.caller.makes_optimizer == "after" and not self.training.optimizers:
            self.training.make_optimizers()
        if self.conditions.equal_from == EQUAL_FROM[0]:
            self.begin()

    def training_before(self, names: Sequence[str]) -> Training:
        """The training objects of a model that is not wrapped yet, with its optimizers."""
        training = Training(self.scenario, self.probe, names, self.probe, frozenset(), asked=self.probe)
        training.make_optimizers()
        return training

    def note_random_numbers(self, place: int) -> None:
        """Record the upcoming random numbers after the event of that place, if the caller seeds them."""
        if self.caller.seeded:
            self.seen["upcoming"][place] = randomness.upcoming(self.device)

    def set_hooks(self) -> None:
        """Set the caller's hooks: on trainable parameters, on the model, and on each module that has parameters."""
        for parameter in self.probe.tensors() if self.caller.hooked else ():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: gradient * 2.0**self.caller.hooked)
        if self.caller.module_hooked:
            self.probe.register_forward_hook(lambda _, inputs, loss: loss * 2.0**self.caller.module_hooked)
            homes = list(dict.fromkeys(self.probe.homes))
            for home in homes:
                home.register_forward_pre_hook(lambda *_, home=home: self.find_parameters(home))
            # A hook on the model multiplies the inputs of units by -1/4. Hooks on each unit multiply its inputs by 2,
            # its output by 2, and its incoming gradient by -1. So if all hooks run, no gradient changes.
            units = [home for home in homes if home is not self.probe]
            read = [-0.25 if unit else 1.0 for unit in self.probe.readers]
            if units:
                self.probe.register_forward_pre_hook(partial(_multiplied, read), with_kwargs=True)
            for unit in units:
                unit.register_forward_pre_hook(partial(_multiplied, [2.0] * len(read)), with_kwargs=True)
                unit.register_forward_hook(lambda _, inputs, loss: loss * 2)
                unit.register_full_backward_pre_hook(lambda _, gradients: tuple(-each for each in gradients))

    def keep(self, parameter: torch.Tensor) -> None:
        """Copy the gradient that a hook of the caller sees: the first one if the hook must run once, else the last."""
        if not self.kept_once or parameter not in self.kept:
            self.kept[parameter] = None if parameter.grad is None else parameter.grad.clone()

    def all_kept(self) -> Values:
        """The full kept gradient of each parameter."""
        found = [self.kept.get(parameter) for parameter in self.probe.in_order()]
        wholes = self.look(lambda: {str(i): _whole(each) for i, each in enumerate(found) if each is not None})
        return [to_numpy(wholes.get(str(index))) for index in range(len(found))]

    def find_parameters(self, home: nn.Module) -> None:
        """Check right before a module's forward that all elements of its parameters are in memory.

        This cannot be checked while it is compiled or traced.
        """
        for index, told in enumerate(self.scenario.parameters):
            if self.probe.homes[index] is home and not torch.compiler.is_compiling():
                there = told.count
                # Raised by tensor subclasses and functional transforms.
                with contextlib.suppress(RuntimeError, TypeError):
                    there = _in_memory(home.held(index))
                if there != told.count:
                    words = f"{there} of the {told.count} elements of parameter {parameter_name(index)}"
                    self.seen["complaints"].append(f"a hook of the caller's finds {words} right before forward")

    def begin(self) -> None:
        """Note the initial parameters, if they are observed. From now on, ranks must be equal."""
        if "initial" not in self.seen:
            self.seen["initial"] = None if self.conditions.part.looks else self.parameters()

    def switch(self, mode: str) -> None:
        """Put the model, and the wrapper if it is a module, into training or evaluation mode."""
        for module in (self.wrapped, self.probe):
            if isinstance(module, nn.Module):
                module.train(mode == "train")

    def call(
        self,
        inputs: Sequence[torch.Tensor],
        order: Sequence[int],
        increment: int = 0,
        fails: str = "",
        direct: bool = False,
    ) -> torch.Tensor:
        """Run a forward. ``direct``: of the model itself instead of the wrapper.

        In some implementations, the first forward completes the construction.
        """
        first, self.called = not self.called, True
        begin = _recorded()
        frozen = tuple(self.scenario.names(*self.frozen))
        called = self.probe if direct else self.wrapped
        given = Inputs(inputs, order, frozen, increment, fails)
        packed = self.takes_one and called is self.wrapped
        loss: torch.Tensor = called(given) if packed else called(*given)
        if first and self.conditions.equal_from != EQUAL_FROM[0]:
            self.seen["built"].append((begin, _recorded()))
            self.begin()
        return loss

    def freeze(self) -> None:
        """Set which parameters are trainable, and watch the hooks of those that are."""
        for index, parameter in enumerate(self.probe.in_order()):
            if self.scenario.parameters[index].tied is None:
                parameter.requires_grad_(index not in self.frozen)
                if index not in self.frozen and self.watched.get(index) is not parameter:
                    self.watched[index] = parameter
                    parameter.register_post_accumulate_grad_hook(lambda _, index=index: self.fired(index))

    def fired(self, index: int) -> None:
        """Called by the hook of a parameter, before any hook of the implementation."""
        self.seen["hooks"][-1].append(index)
        if self.fails == "hook":
            raise CallersError("in a hook")

    def parameters(self) -> Values:
        """The values of the parameters."""
        if "full_parameters" in self.offers:
            full = self.look(partial(adapter.full_parameters, self.wrapped))
            return [to_numpy(full[name]) for name in self.training.names]
        return self.together(self.probe.in_order())

    def gradients(self) -> Values:
        """The values of the gradients; None for a missing one."""
        if "full_gradients" in self.offers:
            full = self.look(self.wrapped.full_gradients)
            return [to_numpy(full[name]) for name in self.training.names]
        return self.together([parameter.grad for parameter in self.probe.in_order()])

    def together(self, values: Sequence[torch.Tensor | None]) -> Values:
        """Copies of the full tensors, one for each parameter."""
        pieces = self.pieces
        if pieces is None:
            return [to_numpy(value) for value in values]
        found = self.look(lambda: dict(enumerate(pieces.together(values))))
        return [to_numpy(value) for value in found.values()]

    def look(self, full: Callable[[], Mapping[Any, Any]]) -> Mapping[Any, Any]:
        """The full values of sharded tensors. The collectives that assemble them are noted as observation."""
        before = _recorded()
        found = full()
        self.seen["looks"].append((before, _recorded()))
        return found

    def states(self) -> list[dict[str, Any]] | None:
        """The optimizer state of each parameter; None if that of a sharded optimizer cannot be observed."""
        if "full_optimizer_state" in self.offers:
            return self.training.states(self.look(lambda: adapter.ended(self.wrapped.full_optimizer_state())))
        if not self.training.sharded:
            return self.training.states() if self.pieces is None else self.states_together(self.pieces)
        named = dict(zip(self.training.names, self.probe.in_order(), strict=True))
        held = self.look(lambda: stepping.full_state(self.training.optimizers, named) or {})
        return self.training.states(held) if held else None

    def states_together(self, pieces: Pieces) -> list[dict[str, Any]]:
        """The optimizer state of each parameter, assembled from the pieces that the ranks hold."""

        def whole() -> dict[str, list[torch.Tensor | None]]:
            held = self.training.held_states()
            return {name: pieces.together([each.get(name) for each in held]) for name in STATE}

        found = self.look(whole)
        states = self.training.states()
        for name, values in found.items():
            for state, value in zip(states, values, strict=True):
                state.pop(name, None)
                state |= {} if value is None else {name: to_numpy(value)}
        return states

    def refuse_of_pieces(self, does: str, method: str) -> None:
        """Raise NotImplementedError, which refuses, if gradients are split. Then only ``method`` ``does`` that."""
        if self.pieces is not None and self.pieces.cut:
            raise NotImplementedError(f"each rank has pieces of gradients, and there is no {method} that {does}")

    def add_up_a_metric(self) -> None:
        """Run a collective of the caller's own, on one element, among the ranks that train."""
        metric, before = torch.tensor(self.rank + 1.0, device=self.device), _recorded()
        dist.all_reduce(metric, group=self.group)
        self.seen["callers"].append((before, _recorded()))
        self.seen["metrics"][self.place] = to_numpy(metric)

    def issued(self) -> int:
        """The number of issued collectives, without those for observation."""
        return _recorded() - sum(end - begin for begin, end in self.seen["looks"])

    def zero_grad(self, set_to_none: bool) -> None:
        """Set gradients to None, or set existing ones to zero."""
        if "zero_grad" in self.offers:
            self.wrapped.zero_grad(set_to_none=set_to_none)
            return
        if self.training.zero_grad(set_to_none):
            return
        for parameter in self.asked.parameters() if self.stands else self.probe.in_order():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def save(self) -> tuple[Any, Any]:
        """The weights, and the rest."""
        return self.training.save_weights(), self.training.save()


def _multiplied(
    factors: Sequence[float], _: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of a module's call with each coefficient multiplied by its factor.

    Coefficients may be passed by position or by name.
    """

    def of(given: Sequence[Any]) -> list[torch.Tensor]:
        return [values * factor for values, factor in zip(given, factors, strict=True)]

    if len(inputs) == 1 and not named:  # a single argument, see `Inputs`
        return (Inputs(of(inputs[0][0]), *inputs[0][1:]),), named
    if "coefficients" in named:
        return tuple(inputs), {**named, "coefficients": of(named["coefficients"])}
    place = next(place for place, each in enumerate(inputs) if isinstance(each, list | tuple))
    return (*inputs[:place], of(inputs[place]), *inputs[place + 1 :]), named


def _in_memory(tensor: torch.Tensor) -> int:
    """The number of its elements in memory.

    A DTensor has the shape of the full tensor, so its local shard is counted.
    """
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return min(local.numel(), local.untyped_storage().nbytes() // local.element_size())


def _whole(tensor: Any) -> torch.Tensor:
    """The whole tensor of which a DTensor is a shard."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _recorded() -> int:
    """The number of collectives that this rank has issued; 0 in a foreign process group, as in benchmarks."""
    recorded: Callable[[], int] = getattr(dist.group.WORLD, "recorded", int)
    return recorded()
