"""The caller's side of a training loop: optimizers, fp32 master weights and the loss scale, as in `oracle.events`.

Operations that a sharded implementation performs itself (`properties.sharded.Sharded`) are left to it.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.oracle import hyperparameters
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import SAVED_BY
from lockstep.properties.conditions import AS_USUAL, Conditions
from lockstep.properties.ranks import checkpoint, stepping
from lockstep.properties.ranks.optimizers import Averaged, class_of, known_to, maker
from lockstep.properties.ranks.probes import Probe, to_numpy


class Training:
    """The objects that a caller keeps from step to step.

    - ``names``: the dotted names of the scenario's parameters.
    - ``offers``: the methods of `Sharded` that ``wrapped`` has.
    - ``asked``: the module whose parameters a single-group optimizer gets, and whose weights are saved and loaded.
    - ``complaints``: faults that a caller would see and that no value shows.
    """

    def __init__(
        self,
        scenario: Scenario,
        probe: Probe,
        names: Sequence[str],
        wrapped: Any,
        offers: frozenset[str],
        conditions: Conditions = AS_USUAL,
        *,
        asked: nn.Module,
    ) -> None:
        self.asked = asked
        self.scenario, self.probe, self.conditions = scenario, probe, conditions
        self.names, self.wrapped, self.offers = names, wrapped, offers
        self.masters: dict[int, nn.Parameter] = {}
        # One, or one for each group that has parameters. They are made at the first step unless the implementation
        # makes them.
        self.optimizers: list[Any] = []
        self.held: list[nn.Parameter] = []  # the tensors that the optimizer was made from, by parameter
        self.sharded = isinstance(wrapped, Averaged)  # true for a sharded optimizer, which the caller makes
        self.late = conditions.added >= 0  # true as long as the last group must still be added
        self.complaints: list[str] = []
        self._begin()
        if "make_optimizer" in offers:
            self.make_optimizers()

    def _begin(self) -> None:
        self.settings = hyperparameters.at_the_start(self.scenario)
        self.scale = None if self.scenario.loss_scale is None else self.scenario.loss_scale.initial
        self.steps_since_overflow = 0
        self.unscaled = self.skip = False

    def unscale(self) -> None:
        """Divide every gradient by the scale, and check that all are finite."""
        self.unscaled = True
        if "unscale_" in self.offers:
            self.skip = not self.wrapped.unscale_(self.scale)
            return
        tensors = self.probe.tensors() if self.asked is self.probe else self.asked.parameters()
        gradients = [parameter.grad for parameter in tensors if parameter.grad is not None]
        for gradient in gradients:
            gradient /= self.scale
        self.skip = not all(bool(gradient.isfinite().all()) for gradient in gradients)

    def step(self, groups: tuple[int, ...] | None = None) -> None:
        """Step all groups or these, but not after an overflow; then update the scale."""
        if not self.optimizers:
            self.make_optimizers()
        if self.scale is not None and not self.unscaled:
            self.unscale()
        if not self.skip:
            self._step(groups)
        if self.scale is not None and self.scenario.loss_scale is not None:
            self.steps_since_overflow = 0 if self.skip else self.steps_since_overflow + 1
            if self.skip:
                self.scale /= 2
            elif self.steps_since_overflow == self.scenario.loss_scale.growth_interval:
                self.scale, self.steps_since_overflow = self.scale * 2, 0
            self.unscaled = self.skip = False

    def _step(self, groups: tuple[int, ...] | None) -> None:
        parameters = self.probe.in_order() if self.masters else []
        for index, master in self.masters.items():
            gradient = parameters[index].grad
            master.grad = None if gradient is None else gradient.float()
        by_group = {share[0]: each for share, each in zip(self.scenario.optimizers, self.optimizers, strict=True)}
        for optimizer in by_group.values() if groups is None else map(by_group.__getitem__, groups):
            self._step_one(optimizer)
        with torch.no_grad():
            for index, master in self.masters.items():
                if master.grad is not None:
                    parameters[index].copy_(master)

    def _step_one(self, optimizer: Any) -> None:
        if self.conditions.closures:
            self.complaints += stepping.with_closure(optimizer, self.masters.values() or self.probe.tensors())
        else:
            optimizer.step()

    def make_optimizers(self) -> None:
        """Make the caller's optimizers and master weights, or let the implementation make its own."""
        kind = class_of(self.conditions.optimizer, self.scenario.optimizer)
        # Every group has its own learning rate, so this default is not used.
        defaults: dict[str, Any] = {"lr": self.scenario.learning_rate}
        settings = zip(self.scenario.all_groups, self.settings, strict=True)
        if "make_optimizer" in self.offers:
            named = [
                {"names": [self.names[index] for index in group.parameters], **hyperparameters.options(values)}
                for group, values in settings
            ]
            defaults |= {"masters": True} if self.scenario.masters and self.conditions.asks_for_masters else {}
            make: Callable[..., Any] = self.wrapped.make_optimizer
            self.optimizers = [make(kind, [named[n] for n in share], **defaults) for share in self.scenario.optimizers]
            return
        parameters = self.held = self.probe.in_order()
        if self.scenario.masters:
            for index, parameter in enumerate(parameters):
                if parameter.dtype.itemsize == 2 and self.scenario.parameters[index].tied is None:
                    self.masters[index] = nn.Parameter(parameter.detach().float())
        if self.asked is not self.probe:
            ((_, values),) = settings
            kind = maker(self.wrapped, kind)
            self.optimizers = [kind(self.asked.parameters(), **{**defaults, **hyperparameters.options(values)})]
            return
        groups = [self.group(number) for number in range(len(self.settings))]
        made = groups[:-1] if self.late else groups
        make, defaults = maker(self.wrapped, kind), known_to(kind, defaults)
        self.optimizers = [
            make([made[n] for n in share if n < len(made)], **defaults) for share in self.scenario.optimizers
        ]

    def group(self, number: int) -> dict[str, Any]:
        """A group of parameters, or of their master weights, in the form that torch's optimizers take."""
        parameters, kind = self.held, class_of(self.conditions.optimizer, self.scenario.optimizer)
        members = [self.masters.get(index, parameters[index]) for index in self.scenario.all_groups[number].parameters]
        return {"params": members, **known_to(kind, hyperparameters.options(self.settings[number]))}

    def add_the_last_group(self) -> None:
        """Add the last group to an optimizer that was made without it."""
        if not self.optimizers:
            self.make_optimizers()
        self.late = False
        self.optimizers[0].add_param_group(self.group(len(self.settings) - 1))

    def zero_grad(self, set_to_none: bool) -> bool:
        """Let a sharded optimizer zero the gradients of all parameters. False if it cannot."""
        if self.sharded and not self.optimizers:
            self.make_optimizers()
        if not self.sharded or self.late or not all(map(stepping.zeroes, self.optimizers)):
            return False
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)
        return True

    def replace(self, tensor: int, parameter: nn.Parameter) -> None:
        """Replace a tensor of the model by another one. Its master weight, if any, and its state begin afresh."""
        if not self.optimizers:
            return
        old = self.masters.get(tensor, self.held[tensor])
        if tensor in self.masters:
            self.masters[tensor] = nn.Parameter(parameter.detach().float())
        self.held[tensor] = parameter
        new = self.masters.get(tensor, parameter)
        for optimizer in self.optimizers:
            optimizer.state.pop(old, None)
            for group in optimizer.param_groups:
                group["params"] = [new if each is old else each for each in group["params"]]

    def set(self, settings: hyperparameters.Settings) -> None:
        """Change the hyper-parameters, by group."""
        self.settings = settings
        if self.optimizers:
            self._tell_settings()

    def _tell_settings(self) -> None:
        kind = class_of(self.conditions.optimizer, self.scenario.optimizer)
        for share, optimizer in zip(self.scenario.optimizers, self.optimizers, strict=True):
            there = share[:-1] if self.late else share
            told = [known_to(kind, hyperparameters.options(self.settings[number])) for number in there]
            for options, group in zip(told, optimizer.param_groups, strict=True):
                scheduled = {"lr": group["lr"]} if self.conditions.scheduled else {}
                group.update(options | scheduled)
            if self.conditions.scheduled:
                stepping.schedule(optimizer, [options["lr"] for options in told])

    def save_weights(self) -> Mapping[str, Any]:
        """The parameters and buffers."""
        return checkpoint.weights_of(self.asked, self.wrapped, self.offers)

    def save(self) -> dict[str, Any]:
        """The state of this object."""
        saved: dict[str, Any] = {"settings": self.settings, "scale": self.scale}
        saved["steps_since_overflow"] = self.steps_since_overflow
        if "full_optimizer_state" in self.offers:
            return {**copy.deepcopy(saved), "optimizer": checkpoint.kept(self.wrapped.full_optimizer_state())}
        if not self.optimizers:
            self.make_optimizers()
        masters = {index: master.detach() for index, master in self.masters.items()}
        by = self.conditions.saved_by if self.sharded else SAVED_BY[0]
        states = [] if by is None else [stepping.saved_state(optimizer, by) for optimizer in self.optimizers]
        return copy.deepcopy({**saved, "optimizers": states, "masters": masters})

    def load(self, weights: Mapping[str, Any], rest: dict[str, Any] | None) -> None:
        """Load the results of `save_weights` and `save`.

        If ``rest`` is None, everything but the weights begins afresh.
        """
        self._begin()
        states = rest["optimizer"] if rest is not None and "load_full" in self.offers else None
        checkpoint.load_weights(self.asked, self.wrapped, self.offers, weights, states)
        if rest is not None:
            self.settings, self.scale = rest["settings"], rest["scale"]
            self.steps_since_overflow = rest["steps_since_overflow"]
        if "load_full" in self.offers:
            self._tell_settings()
            return
        if rest is None:
            self.masters, self.optimizers = {}, []
            return
        if not self.optimizers:
            self.make_optimizers()
        with torch.no_grad():
            for index, master in self.masters.items():
                master.copy_(rest["masters"][index])
        for optimizer, state in zip(self.optimizers, rest["optimizers"], strict=True):
            optimizer.load_state_dict(state)

    def states(self, held: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The optimizer state of each parameter, and its master weight.

        ``held``: the state by name, if the implementation told it.
        """
        if held is not None:
            told = (
                held.get(name, {}) if parameter.tied is None else {}
                for name, parameter in zip(self.names, self.scenario.parameters, strict=True)
            )
            return [{key: to_numpy(torch.as_tensor(value)) for key, value in state.items()} for state in told]
        found = [
            {name: to_numpy(torch.as_tensor(value)) for name, value in state.items() if value is not None}
            for state in self.held_states()
        ]
        for index in self.masters if self.optimizers else ():
            found[index]["master"] = to_numpy(self.masters[index])
        return found

    def held_states(self) -> list[Mapping[str, Any]]:
        """The state of each parameter in the caller's optimizers."""
        kept = {parameter: state for each in self.optimizers for parameter, state in each.state.items()}
        return [
            kept.get(self.masters.get(index, parameter), {}) if self.scenario.parameters[index].tied is None else {}
            for index, parameter in enumerate(self.probe.in_order())
        ]
