"""The choices made once for a program: ranks, model, options of the implementation and of the training loop.

The probes make a scenario decide every gradient, so that the expected values need no autograd. With ``c[m, s, p]`` the
coefficients of micro-batch m, sample s and parameter p (`oracle.fingerprint` chooses them):

    linear       loss(m, s) = sum over p of <c[m, s, p], p>            so the gradient *is* c
    quadratic    loss(m, s) = sum over p of <c[m, s, p], p * p> / 2    so the gradient is c * p: stale weights show

A tied parameter is another name of an earlier one. Both are one tensor, which is stepped once and counts once in a
norm. Its gradient is the sum of the gradients of its names.

The following change no expected value:

    units        submodules, each with some of the parameters; the others belong to the root. The root's forward goes
                 through the parameters in reverse of the order in which backward is to reach them. Neighbours of one
                 unit are used in one call of it, so a unit may be called more than once
    outside      parameters of units that the root's forward reads itself, without calling the unit
    layouts      the order of an initial tensor's elements in memory
    replicas     the ranks form this number of groups of consecutive ranks; each group holds the model once
    outsiders    the ranks are a group, the ``members`` of a larger world. The other ranks of that world help to make
                 the group and do nothing else. They are the world's rank 0 and, of two, the rank after the first
                 member: with tensor parallelism, data-parallel groups leave out ranks in between too
"""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from lockstep.oracle.caller import AS_USUAL, Caller, Differing
from lockstep.oracle.model import DEFAULTS, Buffer, Group, Hyperparameters, LossScale, Parameter
from lockstep.oracle.short import Short, is_whole

UNUSED = ("untouched", "zero")
PROBES = ("linear", "quadratic")
SIGNS = ("positive", "mixed", "negative")
CANCELLING = "cancelling"
MODES = ("train", "eval")
WIRES = ("bfloat16", "float16")
OPTIMIZERS = ("SGD", "Adam", "AdamW")
_ONLY_SGD, _ONLY_ADAM = ("momentum", "dampening", "nesterov"), ("betas", "eps")
S = TypeVar("S", bound="Setup")


@dataclass(frozen=True, repr=False)
class Setup(Short):
    """The set-up of a program for ``world_size`` ranks. Raises ValueError, in one line, for one without a meaning.

    bucket_cap         in bytes; 0: no two tensors share a bucket; None: the implementation decides
    learning_rate      a power of two, so that steps can be exact; any other value goes into ``hyperparameters``
    only               (micro-batch, sample, parameter, element) of the one contribution that is not silenced. By
                       linearity, such runs give the coefficient of each contribution in every gradient
    sparse             (i, n): the i-th of n runs that share the contributions out, for formats in which one run cannot
                       hold all of them (`oracle.fingerprint`)
    hyperparameters    None stands for torch's default, and for 0 in any weight decay
    groups             group 0 has the parameters that are in none of these; these follow it
    units, outside     the parameters of each submodule; those of them that are read outside of it
    signs              of the contributions: one of ``SIGNS``, or ``CANCELLING``. With the latter, neighbouring
                       micro-batches inside ``no_sync`` share a large number, the second with a minus: the gradient
                       between them needs digits that the sum does not
    mode               of the modules in training, one of ``MODES``. In "eval", as in a fine-tuning without dropout and
                       with fixed statistics, forwards leave buffers alone
    wire               the dtype in which gradients may travel, one of ``WIRES``, or "": their own. It holds them
                       exactly
    roles              by rank: the rank whose samples, errors and overflows it has. Initial values stay its own. Empty:
                       every rank has its own
    registered         the order in which the model registers its parameters; empty: the order given
    differs            one rank has another model, which an implementation must refuse; no values are expected
    """

    world_size: int
    parameters: tuple[Parameter, ...]
    _: KW_ONLY
    probe: str = "linear"
    bucket_cap: int | None = None
    learning_rate: float = 0.5
    only: tuple[int, int, int, int] | None = None
    optimizer: str = "SGD"
    hyperparameters: Hyperparameters = DEFAULTS
    groups: tuple[Group, ...] = ()
    masters: bool = False
    loss_scale: LossScale | None = None
    buffers: tuple[Buffer, ...] = ()
    broadcast_buffers: bool = False
    sparse: tuple[int, int] = (0, 1)
    units: tuple[tuple[int, ...], ...] = ()
    outside: tuple[int, ...] = ()
    replicas: int = 1
    outsiders: int = 0
    signs: str = SIGNS[0]
    mode: str = MODES[0]
    wire: str = ""
    caller: Caller = AS_USUAL
    roles: tuple[int, ...] = ()
    registered: tuple[int, ...] = ()
    differs: Differing | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("a probe", self.probe, PROBES),
            ("an optimizer", self.optimizer, OPTIMIZERS),
            ("the choice of signs", self.signs, (*SIGNS, CANCELLING)),
            ("the mode", self.mode, MODES),
        ):
            if value not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}")
        if self.wire not in ("", *WIRES):
            raise ValueError(f"gradients travel in one of {', '.join(WIRES)}, or, '', in their own, not {self.wire!r}")
        _check_numbers(self)
        _check_model(self)
        _check_caller(self)
        for values in (self.hyperparameters, *(group.hyperparameters for group in self.groups)):
            self.check_options(values)

    @property
    def members(self) -> tuple[int, ...]:
        """By rank: its rank in the larger world."""
        outside = {number + min(number, self.world_size) for number in range(self.outsiders)}
        return tuple(rank for rank in range(self.world_size + self.outsiders) if rank not in outside)

    def on_ranks(self: S, size: int, **changes: Any) -> S:
        """The same set-up on this many ranks, without all that concerns single ranks, and with these changes."""
        return replace(self, world_size=size, replicas=1, roles=(), differs=None, **changes)

    def role(self, rank: int) -> int:
        """The rank whose samples a rank has."""
        return self.roles[rank] if self.roles else rank

    def tensor(self, parameter: int) -> int:
        """The parameter that a parameter is a name of: itself, unless it is tied."""
        tied = self.parameters[parameter].tied
        return parameter if tied is None else tied

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """The parameters that are no other's name."""
        return tuple(index for index, parameter in enumerate(self.parameters) if parameter.tied is None)

    def names(self, *tensors: int) -> list[int]:
        """The parameters that are names of these tensors, themselves included."""
        return [index for index in range(len(self.parameters)) if self.tensor(index) in tensors]

    def unit(self, parameter: int) -> int | None:
        """The unit that a parameter belongs to; None: it is the root's own."""
        return next((number for number, unit in enumerate(self.units) if parameter in unit), None)

    def reader(self, parameter: int) -> int | None:
        """The unit whose forward reads a parameter; None: the root's does."""
        return None if parameter in self.outside else self.unit(parameter)

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """Group 0, the parameters that are in none of ``groups``, and then those; tensors only, no other names."""
        elsewhere = {parameter for group in self.groups for parameter in group.parameters}
        return (Group(tuple(index for index in self.tensors if index not in elsewhere)), *self.groups)

    def check_options(self, values: Hyperparameters) -> None:
        """ValueError for hyper-parameters that the optimizer does not have, or that are not finite.

        Whether they go together is seen when they are put together (`oracle.hyperparameters`).
        """
        others = _ONLY_ADAM if self.optimizer == "SGD" else _ONLY_SGD
        for name in others:
            if getattr(values, name) is not None:
                raise ValueError(f"{name} {getattr(values, name)} is no option of {self.optimizer}")
        if values.betas is not None and len(values.betas) != 2:
            raise ValueError(f"betas are two numbers, not {values.betas}")
        for name, value in vars(values).items():
            if value is not None and not np.isfinite(value).all():
                raise ValueError(f"{name} {value} is not finite")

    def check_tensors(self, event: object, parameters: Iterable[int]) -> None:
        """ValueError where an event names a parameter that is no tensor of the model."""
        if not set(parameters) <= {*self.tensors}:
            raise ValueError(f"{event!r} names what is no tensor of the model")


def _check_numbers(setup: Setup) -> None:
    if not is_whole(setup.world_size, 1):
        raise ValueError(f"a world has at least one rank, not {setup.world_size}")
    if not setup.parameters:
        raise ValueError("a model has at least one parameter, not ()")
    if setup.bucket_cap is not None and setup.bucket_cap < 0:
        raise ValueError(f"a bucket cap is a number of bytes, not {setup.bucket_cap}")
    if not (0 < setup.learning_rate <= 1 and _is_power_of_two(setup.learning_rate)):
        raise ValueError(f"a learning rate is a power of two of at most 1, not {setup.learning_rate}")
    run, runs = setup.sparse
    if not (is_whole(run, 0) and is_whole(runs, run + 1)):
        raise ValueError(f"a sparse run is (i, n) with 0 <= i < n, not {setup.sparse}")
    scale = setup.loss_scale
    if scale is not None and not (1 <= scale.initial <= 2.0**16 and _is_power_of_two(scale.initial)):
        raise ValueError(f"a loss scale is a power of two from 1 to 2**16, not {scale.initial}")
    if scale is not None and not is_whole(scale.growth_interval, 1):
        raise ValueError(f"a loss scale grows after a whole number of steps from 1, not {scale.growth_interval}")
    if not is_whole(setup.replicas, 1) or setup.world_size % setup.replicas:
        raise ValueError(f"{setup.world_size} ranks cannot form {setup.replicas} replicas of equal size")
    if not is_whole(setup.outsiders, 0):
        raise ValueError(f"0 ranks or more take no part, not {setup.outsiders}")
    if setup.outsiders and setup.replicas > 1:
        raise ValueError(f"{setup.replicas} replicas are made of a whole world: {setup.outsiders} outsiders")


def _is_power_of_two(number: float) -> bool:
    return bool(np.frexp(number)[0] == 0.5)


def _check_model(setup: Setup) -> None:
    """Ties lead to an earlier tensor that is alike, groups share the tensors out, and units the parameters."""
    for index, parameter in enumerate(setup.parameters):
        if parameter.tied is not None:
            root = setup.parameters[parameter.tied] if 0 <= parameter.tied < index else None
            if root is None or root.tied is not None:
                raise ValueError(f"parameter {index} is tied to {parameter.tied}, which is no earlier tensor")
            if replace(parameter, tied=None) != root:
                raise ValueError(f"parameter {index}, {parameter!r}, is tied to one that differs: {root!r}")
    named = [parameter for group in setup.groups for parameter in group.parameters]
    for index in named:
        if not 0 <= index < len(setup.parameters) or setup.parameters[index].tied is not None:
            raise ValueError(f"a group names parameter {index}, which is no tensor of the model")
        if named.count(index) > 1:
            raise ValueError(f"parameter {index} is in a group {named.count(index)} times")
    placed = [parameter for unit in setup.units for parameter in unit]
    for index in placed:
        if not 0 <= index < len(setup.parameters) or placed.count(index) > 1:
            raise ValueError(f"units {setup.units} do not name parameters once each")
    if not set(setup.outside) <= set(placed) or len(set(setup.outside)) < len(setup.outside):
        raise ValueError(f"outside {setup.outside} does not name parameters of units once each")


def _check_caller(setup: Setup) -> None:
    """Check that the caller's habits fit the model and the ranks."""
    caller, differs = setup.caller, setup.differs
    for name, order, count in (
        ("roles", setup.roles, setup.world_size),
        ("registered", setup.registered, len(setup.parameters)),
    ):
        if order and sorted(order) != [*range(count)]:
            raise ValueError(f"{name} names each of 0 .. {count - 1} once, or none: {order}")
    if caller.asks_the_wrapper and (setup.groups or setup.masters):
        raise ValueError("an optimizer of what the wrapper tells of itself has one group of parameters, and no masters")
    if caller.makes_optimizer and setup.masters:
        raise ValueError(
            f"masters are made once ranks have parameters in common, not right {caller.makes_optimizer} wrapping"
        )
    if (caller.beside or caller.joint) and setup.signs == "mixed":
        raise ValueError("another model has gradients of the other sign: of signs that are mixed there is none")
    if differs is None:
        return
    if not (0 <= differs.rank < setup.world_size and 0 <= differs.parameter < len(setup.parameters)):
        raise ValueError(f"{differs!r} names a rank or parameter that there is not")
    if setup.world_size == 1 or setup.units or (differs.way == "order" and len(setup.parameters) == 1):
        raise ValueError(f"{differs!r} takes several ranks and no units, and an order two parameters")
