"""A sharded optimizer as users write it, made of parameters and the class of a plain optimizer.

Each parameter belongs whole to one rank, in turn. A rank steps its own parameters with the plain optimizer, and then
broadcasts them. The wrapper of the model averages gradients.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class OwnedParameters(torch.optim.Optimizer):
    """``optimizer_cls``: the class of the plain optimizer; ``defaults``: its options."""

    local: torch.optim.Optimizer | None = None  # of this rank's own parameters

    def __init__(self, params: Any, optimizer_cls: Callable[..., torch.optim.Optimizer], **defaults: Any) -> None:
        self.optimizer_cls, self.options = optimizer_cls, defaults
        self.owners: dict[nn.Parameter, int] = {}
        super().__init__(params, defaults)

    def owner(self, parameter: nn.Parameter) -> int:
        """The rank that is to own a parameter."""
        return len(self.owners) % dist.get_world_size()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Shares the parameters of a group out. Every rank has each group, some without parameters."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            self.owners[parameter] = self.owner(parameter)
        own = {**group, "params": [each for each in group["params"] if self.owners[each] == dist.get_rank()]}
        if self.local is None:
            self.local = self.optimizer_cls([own], **self.options)
        else:
            self.local.add_param_group(own)

    def hand_on(self) -> None:
        """Gives the plain optimizer the options that the groups have now."""
        assert self.local is not None
        for group, own in zip(self.param_groups, self.local.param_groups, strict=True):
            own.update({name: value for name, value in group.items() if name != "params"})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps what this rank owns, and makes it everybody's."""
        assert self.local is not None
        self.hand_on()
        loss = self.local.step(closure)
        self.publish(self.owners)
        return loss

    def publish(self, parameters: Iterable[nn.Parameter]) -> None:
        """Broadcasts parameters from their owners."""
        for parameter in parameters:
            whole = parameter.detach().contiguous()
            dist.broadcast(whole, src=self.owners[parameter])
            parameter.data.copy_(whole)

    def state_dict(self) -> dict[str, Any]:
        """This rank's own state, and the options of all groups."""
        assert self.local is not None
        return {"local": self.local.state_dict(), "groups": self.group_options()}

    def group_options(self) -> Sequence[dict[str, Any]]:
        """The options of each group."""
        return [{name: value for name, value in group.items() if name != "params"} for group in self.param_groups]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up what `state_dict` gave on this rank."""
        assert self.local is not None
        self.local.load_state_dict(state_dict["local"])
        for group, options in zip(self.param_groups, state_dict["groups"], strict=True):
            group.update(options)
