"""The probe models of `oracle.setup` in torch. The scenario determines their gradients and the order of their hooks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from lockstep.oracle.initial import initial_buffers
from lockstep.oracle.program import Scenario
from lockstep.properties.naming import parameter_name
from lockstep.properties.ranks.layers import WEIGHT, layer_of, weight_read
from lockstep.worlds.devices import place

# The place where a micro-batch raises, "module" or "backward", and the parameter.
Failing: TypeAlias = tuple[str, int] | None


class CallersError(Exception):
    """The error raised by a Raise event."""


class Inputs(NamedTuple):
    """All arguments of a `Probe`'s forward in one, for a wrapper whose own forward takes a single argument."""

    coefficients: Sequence[torch.Tensor]
    order: Sequence[int]
    frozen: Sequence[int] = ()
    increment: int = 0
    fails: str = ""


class _Fails(torch.autograd.Function):
    """The identity with a backward that raises."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise CallersError("in backward")


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The values with the memory layout of that name, see `oracle.setup`."""
    if layout == "transposed":
        backwards = tuple(range(values.dim()))[::-1]
        return values.permute(backwards).contiguous().permute(backwards)
    return values.contiguous(memory_format=torch.channels_last) if layout == "channels last" else values


class Home(nn.Module):
    """A module of a probe.

    ``read``: the values of its parameters that forward has read in evaluation mode. ``layers``: the shapes and dtypes
    of the parameters that plain layers hold, by number (`properties.ranks.layers`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, npt.NDArray[np.generic] | None] = {}
        self.layers: dict[int, tuple[tuple[int, ...], torch.dtype]] = {}

    def hold(self, index: int, parameter: nn.Parameter, in_layers: bool) -> None:
        """Register a parameter of that number. With ``in_layers``, a plain layer holds it if there is one for it."""
        layer = layer_of(parameter, index) if in_layers else None
        if layer is None:
            self.register_parameter(parameter_name(index), parameter)
        else:
            self.layers[index] = tuple(parameter.shape), parameter.dtype
            self.register_module(parameter_name(index), layer)

    def held(self, index: int) -> Any:
        """The current parameter of that number."""
        found = getattr(self, parameter_name(index))
        return getattr(found, WEIGHT) if index in self.layers else found

    def parameter_read(self, index: int) -> Any:
        """The parameter of that number as forward reads it."""
        found = getattr(self, parameter_name(index))
        return weight_read(found, index, *self.layers[index]) if index in self.layers else found

    def note(self, index: int, parameter: torch.Tensor) -> None:
        """Record the value that was read. While forward is compiled or traced, there is no value to record."""
        if not torch.compiler.is_compiling():
            with contextlib.suppress(RuntimeError, TypeError):  # raised by tensor subclasses and functional transforms
                self.read[index] = to_numpy(parameter)


def products(
    homes: Sequence[Any],
    kind: str,
    coefficients: Sequence[torch.Tensor],
    run: Iterable[int],
    fails: Failing,
) -> torch.Tensor:
    """The part of the loss that some parameters contribute, in this order.

    ``homes``: the module that holds each parameter.
    """
    loss = torch.zeros((), device=place())
    for index in run:
        parameter = homes[index].parameter_read(index)
        if not torch.is_grad_enabled():
            homes[index].note(index, parameter)
        if fails == ("module", index):
            raise CallersError("in a module")
        if fails == ("backward", index):
            parameter = _Fails.apply(parameter)
        values = parameter if kind == "linear" else parameter.square() / 2
        loss = loss + (coefficients[index] * values).sum()
    return loss


class Unit(Home):
    """A submodule with some of the parameters and their part of the loss, see `products`."""

    def forward(
        self, kind: str, coefficients: Sequence[torch.Tensor], run: Iterable[int], fails: Failing
    ) -> torch.Tensor:
        """The sum of the products of some of its parameters."""
        return products((self,) * len(coefficients), kind, coefficients, run, fails)


class Probe(Home):
    """The model of a scenario, with these initial values and the buffers of a rank.

    The data of a micro-batch are arguments of the call and not attributes, because a wrapper may run a copy.
    ``in_layers``: plain layers hold the parameters that they can.
    """

    def __init__(
        self,
        scenario: Scenario,
        initial: Sequence[npt.NDArray[np.float64]],
        rank: int = 0,
        in_layers: bool = False,
    ) -> None:
        super().__init__()
        self.kind, self.reassigned = scenario.probe, tuple(buffer.reassigned for buffer in scenario.buffers)
        # The module that holds each parameter. A tuple does not register them again.
        self.homes: tuple[Home, ...] = (self,) * len(scenario.parameters)
        if scenario.units:
            units = [Unit() for _ in scenario.units]
            for number, unit in enumerate(units):
                self.register_module(f"unit{number}", unit)
            places = map(scenario.unit, range(len(scenario.parameters)))
            self.homes = tuple(self if number is None else units[number] for number in places)
        # The module whose forward reads each parameter, which may be another than its home; "" for this module.
        readers = map(scenario.reader, range(len(scenario.parameters)))
        self.readers = tuple("" if unit is None else f"unit{unit}" for unit in readers)
        made: list[nn.Parameter] = []
        for index, (parameter, values) in enumerate(zip(scenario.parameters, initial, strict=True)):
            if parameter.tied is None:
                tensor = torch.tensor(values, dtype=getattr(torch, parameter.dtype), device=place())
                made.append(nn.Parameter(laid_out(tensor, parameter.layout), requires_grad=parameter.trainable))
            else:
                made.append(made[parameter.tied])
            self.homes[index].hold(index, made[-1], in_layers)
        for index, buffer in enumerate(initial_buffers(scenario, rank)):
            self.register_buffer(f"buffer{index}", torch.tensor(buffer, device=place()))

    def register_in(self, order: Sequence[int]) -> None:
        """Register each module's parameters again in this order, under the same names."""
        made = self.in_order()
        for index in order:
            home, in_layers = self.homes[index], index in self.homes[index].layers
            delattr(home, parameter_name(index))
            home.hold(index, made[index], in_layers)

    def differ(self, way: str, index: int) -> None:
        """Become a model that differs from the scenario's in one of `oracle.caller.WAYS`.

        ``index``: the parameter, if it matters.
        """
        parameter = self.in_order()[index]
        match way:
            case "number":
                self.register_parameter("more", nn.Parameter(torch.zeros((), device=place())))
            case "size":
                other = parameter.new_zeros(parameter.numel() + 1)
                self.put(index, nn.Parameter(other, requires_grad=parameter.requires_grad))
            case "shape":
                self.put(index, nn.Parameter(parameter.detach()[None], requires_grad=parameter.requires_grad))
            case "name":  # under the old name it remains an attribute
                delattr(self, parameter_name(index))
                self.register_parameter("other", parameter)
                self.__dict__[parameter_name(index)] = parameter
            case "dtype":
                other = parameter.detach().to(torch.float64 if parameter.dtype is torch.float32 else torch.float32)
                self.put(index, nn.Parameter(other, requires_grad=parameter.requires_grad))
            case "trained":
                parameter.requires_grad_(False)
            case "order":
                self.register_in(range(len(self.homes))[::-1])

    def in_order(self) -> list[nn.Parameter]:
        """The current parameters in the scenario's order. This is many times faster than `parameters`."""
        return [module.held(index) for index, module in enumerate(self.homes)]

    def put(self, index: int, parameter: nn.Parameter) -> None:
        """Replace a parameter by another tensor."""
        home = self.homes[index]
        if index in home.layers:
            setattr(getattr(home, parameter_name(index)), WEIGHT, parameter)
        else:
            setattr(home, parameter_name(index), parameter)

    def rename(self, index: int, parameter: nn.Parameter) -> None:
        """Replace a parameter by another tensor under another name.

        Forward reads it by the old name, a plain attribute.
        """
        home, name = self.homes[index], parameter_name(index)
        delattr(home, name)
        home.register_parameter(f"{name}_new", parameter)
        home.__dict__[name] = parameter

    def tensors(self) -> list[nn.Parameter]:
        """The current parameters, each tensor once, however many names it has."""
        return list(dict.fromkeys(self.in_order()))

    def forward(
        self,
        coefficients: Any,
        order: Sequence[int] | None = None,
        frozen: Sequence[int] = (),
        increment: int = 0,
        fails: str = "",
    ) -> torch.Tensor:
        """The loss of one micro-batch. Backward reaches the parameters in the given ``order``.

        Without an ``order``, ``coefficients`` are `Inputs`, or a tuple with the same items if a wrapper has rebuilt
        them. Autograd runs backward through the products latest first, so they are created in reverse. The order in
        which they are added up changes nothing. ``frozen``: parameters that are not trained; forward still reads those
        of the root. ``increment``: the number added to the buffers. ``fails``: the place where this forward or its
        backward raises: backward after half of the parameters, a module at the middle one of forward.
        """
        if order is None:
            coefficients, order, frozen, increment, fails = coefficients
        if fails == "forward":
            raise CallersError("in forward")
        for index, reassigned in enumerate(self.reassigned if self.training else ()):
            buffer = getattr(self, f"buffer{index}")
            if reassigned and increment:  # not in an evaluation, which would replace it by an inference tensor
                setattr(self, f"buffer{index}", buffer + increment)
            else:
                buffer.add_(increment)
        middle = {"module": (len(order) - 1) // 2, "backward": len(order) // 2}
        failing = (fails, order[middle[fails]]) if fails in middle else None
        loss = torch.zeros((), device=place())
        for unit, run in itertools.groupby(reversed(order), self.readers.__getitem__):
            if not unit:
                loss = loss + products(self.homes, self.kind, coefficients, run, failing)
            else:  # looked up by name, because a wrapper may have replaced a unit
                loss = loss + getattr(self, unit)(self.kind, coefficients, tuple(run), failing)
        for index in frozen:
            if self.homes[index] is self:
                loss = loss + self.parameter_read(index).sum()
        return loss


def to_numpy(tensor: torch.Tensor | None) -> npt.NDArray[np.generic] | None:
    """A copy of the tensor's values in their own dtype."""
    if tensor is None:
        return None
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    # Copied first: a storage shared with NumPy can no longer be resized, which its owner may need.
    values = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    if values.dtype is torch.bfloat16:
        return values.view(torch.uint16).numpy().view(ml_dtypes.bfloat16).copy()
    array: npt.NDArray[np.generic] = values.numpy().copy()  # copied again, so that no storage of torch stays alive
    return array
