"""An optimizer of `torch.optim` on this rank's pieces of parameters, with float32 masters on request.

It steps element by element, so stepping the pieces equals stepping the whole. Every parameter has a piece on every
rank, perhaps without elements, so that step counts are the same everywhere.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import nn

State = dict[str, torch.Tensor]

# What the kernels take of an optimizer's options.
TAKEN = {torch.optim.AdamW: ("lr", "betas", "eps", "weight_decay"), torch.optim.SGD: ("lr", "momentum", "weight_decay")}


class Pieces(Protocol):
    """The owner of the pieces that are stepped. ``means``: this rank's piece of each averaged gradient."""

    means: dict[nn.Parameter, torch.Tensor]

    def values(self, parameter: nn.Parameter) -> torch.Tensor:
        """This rank's elements of a parameter."""

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Tells all ranks this rank's new elements."""


class ShardedOptimizer:
    """The optimizer. ``groups``: as torch's, of whole parameters.

    ``kernels``: None: the kernels step mixed precision on CUDA; True: everywhere; False: nowhere. torch handles the
    options that the kernels do not know.
    """

    def __init__(
        self,
        owner: Pieces,
        kind: type[torch.optim.Optimizer],
        groups: Sequence[Mapping[str, Any]],
        masters: bool = False,
        kernels: bool | None = None,
        **defaults: Any,
    ) -> None:
        self._owner, self._kernels = owner, kernels
        self.masters: dict[nn.Parameter, nn.Parameter] = {}  # parameter -> its piece in float32
        self._pieces: dict[nn.Parameter, nn.Parameter] = {}  # parameter -> what the optimizer knows of it
        for parameter in (parameter for group in groups for parameter in group["params"]):
            if masters and parameter.dtype.itemsize == 2:
                self.masters[parameter] = nn.Parameter(owner.values(parameter).float())
            self._pieces[parameter] = self.masters.get(parameter, nn.Parameter(parameter.new_empty(0)))
        pieces = [{**group, "params": [self._pieces[each] for each in group["params"]]} for group in groups]
        self.inner = kind(pieces, **defaults)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups' options, to be read and changed."""
        return self.inner.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """Every rank steps its piece of each parameter that has a gradient, and tells the others."""
        means = self._owner.means
        stepped = {parameter: self._owner.values(parameter) for parameter in self._pieces if parameter in means}
        for parameter, values in stepped.items():
            piece = self._pieces[parameter]
            if parameter not in self.masters:
                piece.data, piece.grad = values, means[parameter]
            elif not self._step_by_kernel(piece, values, means[parameter]):
                piece.grad = means[parameter].float()
        self.inner.step()
        for parameter, values in stepped.items():
            piece = self._pieces[parameter]
            if parameter not in self.masters:
                piece.grad, piece.data = None, values.new_empty(0)
            elif piece.grad is not None:
                values.copy_(piece.detach())
                piece.grad = None
        self._owner.publish(stepped)

    def _step_by_kernel(self, master: nn.Parameter, values: torch.Tensor, mean: torch.Tensor) -> bool:
        """Steps a master and its 16-bit parameter in one pass, where there is a kernel for it."""
        if not (values.is_cuda if self._kernels is None else self._kernels):
            return False
        group = next(group for group in self.param_groups if any(each is master for each in group["params"]))
        options = kernel_options(type(self.inner), group)
        if options is None:
            return False
        from lockstep.impls.kernels import step as kernels  # Triton is imported by those who use it

        state, data = self.inner.state[master], master.data
        if isinstance(self.inner, torch.optim.AdamW):
            if not state:
                state["step"] = torch.tensor(0.0)
                state |= {name: torch.zeros_like(data) for name in ("exp_avg", "exp_avg_sq")}
            state["step"] += 1
            moments = (state["exp_avg"], state["exp_avg_sq"])
            kernels.adamw_step(values, data, mean, *moments, step=int(state["step"]), **options)
        else:
            first = group["momentum"] != 0 and state.get("momentum_buffer") is None
            if first:
                state["momentum_buffer"] = torch.zeros_like(data)
            buffer = state["momentum_buffer"] if group["momentum"] else None
            kernels.sgd_step(values, data, mean, buffer, first=first, **options)
        return True

    def state(self, parameter: nn.Parameter) -> State:
        """The optimizer state of a parameter, in pieces; the step count is a number."""
        held = self.inner.state.get(self._pieces[parameter], {})
        found = {name: value for name, value in held.items() if value is not None}
        if parameter in self.masters:
            found["master"] = self.masters[parameter].detach()
        return found

    def load(self, parameter: nn.Parameter, state: State | None) -> None:
        """Takes up what `state` gave, cut for this rank. None: nothing was ever stepped, masters are made anew."""
        held = {} if state is None else dict(state)
        master = held.pop("master", None)
        if parameter in self.masters:
            self.masters[parameter].data.copy_(self._owner.values(parameter) if master is None else master)
        self.inner.state.pop(self._pieces[parameter], None)
        if held:
            self.inner.state[self._pieces[parameter]] = held


def kernel_options(kind: Any, group: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of a group that the kernels take. None if an option that they do not take differs from torch's
    default.

    So an option that is new in torch is never ignored. The kernels also decline a subclass, which may step in another
    way, and an option that is a tensor, which may be on the device.
    """
    if kind not in TAKEN:
        return None
    options = {name: group[name] for name in TAKEN[kind]}
    others = {name: value for name, value in _defaults(kind).items() if name not in options}
    numbers = [each for value in options.values() for each in (value if isinstance(value, tuple) else (value,))]
    if any(isinstance(each, torch.Tensor) for each in numbers) or any(group[name] != others[name] for name in others):
        return None
    return options


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return dict(kind([nn.Parameter(torch.empty(0))], lr=1.0).defaults)
