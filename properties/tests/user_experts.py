"""Wrappers of dense parameters and experts as users write them; none declares anything."""

import torch
import torch.distributed as dist
from torch import nn


class Hooked(nn.Module):
    """Right, and neither clips nor saves: gradients are final when backward returns."""

    def __init__(self, module, process_groups):
        super().__init__()
        self.module = module
        for name, parameter in module.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, group=process_groups[name]: self.reduce(p, group))

    def reduce(self, parameter, group):
        parameter.grad /= dist.get_world_size()
        dist.all_reduce(parameter.grad, group=group)

    def forward(self, gradients):
        return self.module(gradients)


class Forgets(Hooked):
    """Divides by each parameter's group."""

    def reduce(self, parameter, group):
        parameter.grad /= dist.get_world_size(group)
        dist.all_reduce(parameter.grad, group=group)


class WantsTensorRanks(Hooked):
    def __init__(self, module, process_groups):
        super().__init__(module, {**process_groups, "tensor": process_groups["tensor"]})


class ReturnsNothing(Hooked):
    def forward(self, gradients):
        self.module(gradients)


def makes_one(module, process_groups):
    return Hooked(module, process_groups)


makes_one.claims = {"experts": True, "expert_divisor": "world"}  # type: ignore[attr-defined]


class Unrelated(torch.nn.Module):
    """Has experts, and takes no groups: any wrapper of a model."""

    def __init__(self, module, experts=0):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)
