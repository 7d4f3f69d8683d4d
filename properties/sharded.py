"""The protocol of implementations that hold parameters, gradients or optimizer state in pieces."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # it is imported where the ranks are
    import torch


class ShardedOptimizer(Protocol):
    """The result of `Sharded.make_optimizer`. ``param_groups``: in the order of the groups; options may be changed."""

    param_groups: list[dict[str, Any]]

    def step(self) -> None:
        """Updates every parameter that has a gradient. Collective."""


class Sharded(Protocol):
    """The methods of a sharded implementation beside forward, `no_sync` and its way to finish.

    Each method is optional, but that `make_optimizer` goes with `full_optimizer_state` and `load_full`.

    Parameters go by the dotted names that they have in the module when it is wrapped, a tied one by its first. Every
    rank calls every method, so all of them may communicate. "Full" means whole, averaged, in the parameter's own shape
    and dtype: what training without shards would hold.

    Saving may end later: `full_parameters` and `full_optimizer_state` may return a handle, whose `result()` or `wait()`
    waits and returns the values. These are the values of the moment when the method was called.
    """

    def make_optimizer(
        self, kind: "type[torch.optim.Optimizer]", groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> ShardedOptimizer:
        """An optimizer of a class of `torch.optim`, made right after wrapping. A group is {"names": [...], **options}:
        one group too has its options there, the defaults have the first step size alone.

        ``masters=True`` among the defaults asks for float32 masters of 16-bit parameters: where they are claimed, and
        not as "always", or no stage is.

        Where `several_optimizers` is claimed it may be called several times, each time with groups of other parameters:
        each optimizer steps its own, and the methods below tell and take up the state of all.
        """

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> "torch.Tensor":
        """Clips by, and returns, the norm of the whole averaged gradient; the same on every rank."""

    def unscale_(self, scale: float) -> bool:
        """Divides gradients by the loss scale; whether all are finite then, agreed on by all ranks."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients become None, or zero where there are some. Not called where it is `nn.Module`'s own."""

    def full_parameters(self) -> "Mapping[str, torch.Tensor]":
        """Every parameter."""

    def full_gradients(self) -> "Mapping[str, torch.Tensor | None]":
        """Every gradient, None where there is none. Called when gradients are averaged."""

    def full_optimizer_state(self) -> "Mapping[str, Mapping[str, torch.Tensor]]":
        """The optimizer's state by parameter, under torch's names; none before its first step; and "master".

        It and `load_full` go with `make_optimizer`.
        """

    def load_full(
        self,
        parameters: "Mapping[str, torch.Tensor]",
        optimizer_state: "Mapping[str, Mapping[str, torch.Tensor]] | None",
    ) -> None:
        """Takes up what `full_parameters` and `full_optimizer_state` gave, in a world of any size.

        Right after wrapping; where `reloads` is claimed also later, when gradients have been dropped.

        None: parameters alone; the optimizer begins afresh, masters from the parameters loaded.
        """
