"""The protocol for implementations that shard parameters, gradients or optimizer state."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # torch is imported only on the ranks
    import torch


class ShardedOptimizer(Protocol):
    """The result of `Sharded.make_optimizer`.

    ``param_groups``: in the order of the groups. The caller may change options in them.
    """

    param_groups: list[dict[str, Any]]

    def step(self) -> None:
        """Update every parameter that has a gradient. Collective."""


class Sharded(Protocol):
    """The methods of a sharded implementation beside forward, `no_sync` and its way to finish.

    Each method is optional, except that `make_optimizer` requires `full_optimizer_state` and `load_full`. Parameters
    are named by the dotted names that they have in the module when it is wrapped, tied ones by their first name. Every
    rank calls every method, so all of them may communicate. "Full" means the complete, averaged tensor in the
    parameter's own shape and dtype, as training without shards would hold it.

    Saving may be asynchronous: `full_parameters` and `full_optimizer_state` may return a handle, whose `result()` or
    `wait()` waits and returns the values. These are the values at the time of the call.
    """

    def make_optimizer(
        self, kind: "type[torch.optim.Optimizer]", groups: Sequence[Mapping[str, Any]], **defaults: Any
    ) -> ShardedOptimizer:
        """An optimizer of a class of `torch.optim`, made right after wrapping.

        A group is {"names": [...], **options}. Options are in the group even if there is only one; the defaults hold
        only the first learning rate. ``masters=True`` among the defaults requests float32 master weights of 16-bit
        parameters. It is passed only if `masters` is claimed as True, or if no stage is claimed.

        If `several_optimizers` is claimed, it may be called several times, with groups of different parameters. Each
        optimizer steps its own parameters, and the methods below save and load the state of all.
        """

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> "torch.Tensor":
        """Clip by the norm of the full averaged gradient. Return that norm, the same on every rank."""

    def unscale_(self, scale: float) -> bool:
        """Divide gradients by the loss scale. True if all are finite then; all ranks must agree on the result."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set gradients to None, or set existing ones to zero. Not called if it is `nn.Module`'s own method."""

    def full_parameters(self) -> "Mapping[str, torch.Tensor]":
        """Every full parameter by name."""

    def full_gradients(self) -> "Mapping[str, torch.Tensor | None]":
        """Every full gradient by name; None if there is none. Called when gradients are averaged."""

    def full_optimizer_state(self) -> "Mapping[str, Mapping[str, torch.Tensor]]":
        """The full optimizer state of each parameter under torch's names, and "master"; empty before its first step.

        Required together with `load_full` if there is a `make_optimizer`.
        """

    def load_full(
        self,
        parameters: "Mapping[str, torch.Tensor]",
        optimizer_state: "Mapping[str, Mapping[str, torch.Tensor]] | None",
    ) -> None:
        """Load the values of `full_parameters` and `full_optimizer_state` in a world of any size.

        Called right after wrapping. If `reloads` is claimed, it may also be called later, when gradients have been
        dropped. If ``optimizer_state`` is None, the optimizer begins afresh, with master weights made from the loaded
        parameters.
        """
