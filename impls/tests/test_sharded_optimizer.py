"""Options of an optimizer that the kernels do not know are stepped by torch, with its very bits."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from lockstep.impls.kernels import step as kernels
from lockstep.impls.kernels.launch import INTERPRETED
from lockstep.impls.sharded_optimizer import ShardedOptimizer

UNKNOWN = [
    (torch.optim.AdamW, {"maximize": True}),
    (torch.optim.AdamW, {"amsgrad": True}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"lr": torch.tensor(1e-3)}),
    (torch.optim.SGD, {"maximize": True}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
]


class OnlyRank:
    """Owns whole parameters: there are no others to tell."""

    def __init__(self) -> None:
        self.means: dict[nn.Parameter, torch.Tensor] = {}

    def values(self, parameter: nn.Parameter) -> torch.Tensor:
        return parameter.data

    def publish(self, stepped: Mapping[nn.Parameter, torch.Tensor]) -> None:
        pass


def steps(kind: type[torch.optim.Optimizer], **options: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The parameter after three steps by a sharded optimizer with kernels, its master, and torch's plain parameter."""
    torch.manual_seed(7)
    parameter, owner = nn.Parameter(torch.randn(9).bfloat16()), OnlyRank()
    plain = nn.Parameter(parameter.detach().float())
    sharded = ShardedOptimizer(owner, kind, [{"params": [parameter]}], masters=True, kernels=True, **options)
    whole = kind([plain], **options)
    for scale in (1.0, 0.1, -0.3):  # smaller gradients, then others: what amsgrad remembers shows
        owner.means[parameter] = (scale * torch.randn(9)).bfloat16()
        plain.grad = owner.means[parameter].float()
        sharded.step()
        whole.step()
    return parameter.detach(), sharded.masters[parameter].detach(), plain.detach()


@pytest.mark.parametrize(("kind", "options"), UNKNOWN, ids=[f"{kind.__name__} {' '.join(of)}" for kind, of in UNKNOWN])
def test_what_the_kernels_do_not_know_is_stepped_by_torch(kind: Any, options: dict[str, Any]) -> None:
    parameter, master, plain = steps(kind, **options)
    assert torch.equal(master, plain)
    assert torch.equal(parameter, plain.bfloat16())


def test_an_option_that_changes_between_steps_counts_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    device = "cpu" if INTERPRETED else "cuda"
    parameter, owner = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16, device=device)), OnlyRank()
    optimizer = ShardedOptimizer(
        owner, torch.optim.SGD, [{"params": [parameter]}], masters=True, kernels=True, lr=0.5, momentum=0.5
    )
    owner.means[parameter] = torch.ones(3, dtype=torch.bfloat16, device=device)
    optimizer.step()
    assert parameter.tolist() == [-0.5] * 3
    monkeypatch.setattr(kernels, "sgd_step", None)  # to be called no more
    optimizer.param_groups[0]["maximize"] = True
    optimizer.step()
    assert parameter.tolist() == [-0.25] * 3  # the momentum is 1/2 - 1


def test_a_subclass_steps_in_its_own_way() -> None:
    class Still(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            pass

    parameter, owner = nn.Parameter(torch.ones(3, dtype=torch.bfloat16)), OnlyRank()
    optimizer = ShardedOptimizer(owner, Still, [{"params": [parameter]}], masters=True, kernels=True, lr=0.5)
    owner.means[parameter] = torch.ones(3, dtype=torch.bfloat16)
    optimizer.step()
    assert parameter.tolist() == [1] * 3


@pytest.mark.parametrize(("kind", "name"), [(torch.optim.AdamW, "adamw_step"), (torch.optim.SGD, "sgd_step")])
def test_what_the_kernels_know_is_stepped_by_them(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(kernels, name, lambda *tensors, **options: calls.append(options))
    steps(kind, weight_decay=0.1, lr=0.5)
    assert [call["weight_decay"] for call in calls] == [0.1] * 3
