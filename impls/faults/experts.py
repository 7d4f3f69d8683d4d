"""Wrappers of experts with one known fault each: what they divide by, count in a norm, or save."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.experts import ExpertParallel, MeanOverGroup

AVERAGED = ("test_an_expert_gets_the_claimed_mean_over_its_own_ranks",)
CLIPPED = ("test_the_norm_counts_each_expert_once_and_clips_by_it_on_every_rank",)
SAVED = ("test_a_checkpoint_has_every_expert_and_restores_each_replica",)


class DividesByTheExpertsGroup(ExpertParallel):
    """Takes the mean over the group, as data parallelism of dense parameters does."""

    known_fault = "an expert's gradient is too large by the number of expert ranks"
    source = (
        "Q01 V https://github.com/NVIDIA/Megatron-LM/pull/5956, "
        "Q02 V https://github.com/pytorch/pytorch/issues/160285, "
        "Q03 V https://github.com/deepspeedai/DeepSpeed/pull/5259"
    )
    killed_by = AVERAGED
    divisor = MeanOverGroup.divisor


class DividesExpertsByTheirRanks(ExpertParallel):
    """Divides a mean over the group once more, by the number of all ranks."""

    known_fault = "an expert's gradient is divided by its group and by all ranks, and too small"
    source = "recipe: two places that divide"
    killed_by = AVERAGED

    def divisor(self, name: str) -> int:
        again = self.groups[name] is not dist.group.WORLD
        return super().divisor(name) * (dist.get_world_size(self.groups[name]) if again else 1)


class AveragesExpertsOverAll(ExpertParallel):
    """Gives every parameter to one reduction over all ranks."""

    known_fault = "different experts are averaged as if they were replicas"
    source = "Q04 D https://github.com/microsoft/Tutel/issues/87"
    killed_by = AVERAGED

    def finish_gradient_synchronization(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in self.module.parameters()])
        most = torch.tensor(flat.numel(), device=flat.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        flat = torch.cat([flat, flat.new_zeros(int(most) - flat.numel())])
        dist.all_reduce(flat)
        place = 0
        for parameter in self.module.parameters():
            parameter.grad.copy_(flat[place : place + parameter.numel()] / dist.get_world_size())
            place += parameter.numel()


class LeavesExpertsOnTheirRanks(ExpertParallel):
    """Skips experts in the reduction, which is right where each is on one rank."""

    known_fault = "the replicas of an expert are not averaged, and part"
    source = "Q05 V https://github.com/facebookresearch/fairseq/issues/4220"
    killed_by = AVERAGED

    def finish_gradient_synchronization(self) -> None:
        kept = {
            name: torch.zeros_like(each) if each.grad is None else each.grad.clone()
            for name, each in self.module.named_parameters()
            if self.groups[name] is not dist.group.WORLD
        }
        super().finish_gradient_synchronization()
        for name, parameter in self.module.named_parameters():
            if name in kept:
                parameter.grad.copy_(kept[name] / self.divisor(name))


class BeginsWithRankZerosExperts(ExpertParallel):
    """Broadcasts every parameter from rank 0 of the world."""

    known_fault = "all experts begin with the weights of rank 0's"
    source = "recipe: a start that knows nothing of groups"
    killed_by = AVERAGED

    def __init__(self, module: nn.Module, process_groups: Mapping[str, dist.ProcessGroup]) -> None:
        super().__init__(module, process_groups)
        for parameter in module.parameters():
            first: list[Any] = [parameter.data]
            dist.broadcast_object_list(first, src=0)
            if first[0].shape == parameter.shape:
                parameter.data.copy_(first[0])


class SkipsExpertsWithoutTokens(ExpertParallel):
    """Reduces only gradients that are there."""

    known_fault = "a rank whose expert has no tokens takes no part in the reduction, for which the others wait"
    source = "Q06 D https://github.com/ScienceOne-AI/DeepSeek-671B-SFT-Guide/issues/7"
    killed_by = AVERAGED

    def finish_gradient_synchronization(self) -> None:
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.groups[name])
                parameter.grad /= self.divisor(name)


class CountsItsOwnExperts(ExpertParallel):
    """Takes the norm of the gradients that the rank has."""

    known_fault = "each rank clips by a norm of its own experts, and replicas of dense parameters part"
    source = (
        "Q07 V https://github.com/hpcaitech/ColossalAI/issues/2192, "
        "Q08 V https://github.com/NVIDIA-NeMo/Automodel/issues/3816"
    )
    killed_by = CLIPPED

    def squares(self) -> torch.Tensor:
        return torch.stack([parameter.grad.square().sum() for parameter in self.module.parameters()]).sum()


class AveragesNorms(CountsItsOwnExperts):
    """Takes the mean of the norms of all ranks."""

    known_fault = "the norm is the mean of the ranks' norms, as if all had the same parameters"
    source = "Q09 V https://github.com/deepspeedai/DeepSpeed/issues/8475"
    killed_by = CLIPPED

    def squares(self) -> torch.Tensor:
        norm = super().squares().sqrt()
        dist.all_reduce(norm)
        return (norm / dist.get_world_size()).square()


class CountsReplicas(ExpertParallel):
    """Adds the squares of the experts of all ranks to those of dense parameters."""

    known_fault = "an expert counts in the norm once for each rank that has it"
    source = "recipe: a sum over all ranks of what some of them share"
    killed_by = CLIPPED

    def squares(self) -> torch.Tensor:
        total, experts = torch.zeros(2, dtype=torch.float64, device=next(self.module.parameters()).device)
        for name, parameter in self.module.named_parameters():
            into = total if self.groups[name] is dist.group.WORLD else experts
            into += parameter.grad.square().sum()
        dist.all_reduce(experts)
        return total + experts


class LeavesExpertsOut(ExpertParallel):
    """Takes the norm of dense parameters alone."""

    known_fault = "experts are clipped, and do not count in the norm"
    source = "Q10 V https://github.com/deepspeedai/DeepSpeed/pull/8613"
    killed_by = CLIPPED

    def squares(self) -> torch.Tensor:
        shared = [each for name, each in self.module.named_parameters() if self.groups[name] is dist.group.WORLD]
        return torch.stack([parameter.grad.square().sum() for parameter in shared]).sum()


class SavesOneRanksExperts(ExpertParallel):
    """Numbers each rank's experts from 0 where it saves, so that all ranks write the same names."""

    known_fault = "a checkpoint has the experts of one rank, which all ranks load"
    source = "Q11 V https://github.com/KempnerInstitute/KempnerForge/issues/202"
    killed_by = SAVED

    def renamed(self) -> dict[str, nn.Parameter]:
        """The parameters that this rank has, its experts numbered from 0."""
        named = dict(self.module.named_parameters())
        experts = [name for name in named if self.groups[name] is not dist.group.WORLD]
        local = {name: name for name in named}
        local |= {name: f"{name.rpartition('.')[0]}.{number}" for number, name in enumerate(experts)}
        return {local[name]: parameter for name, parameter in named.items()}

    def own_parameters(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.renamed().items()}

    @torch.no_grad()
    def load_full(self, parameters: Mapping[str, torch.Tensor], optimizer_state: Any = None) -> None:
        for name, parameter in self.renamed().items():
            parameter.copy_(parameters[name])


class LoadsTheFirstExperts(SavesOneRanksExperts):
    """Saves every expert, and loads as many as the rank has, from the first on."""

    known_fault = "every rank loads the first experts of the checkpoint"
    source = "Q12 D https://github.com/deepspeedai/DeepSpeed/issues/6589"
    killed_by = SAVED
    own_parameters = ExpertParallel.own_parameters


class RestoresOneReplica(ExpertParallel):
    """Lets the first rank of each group load."""

    known_fault = "one replica of an expert is restored, and the others keep their initial weights"
    source = "recipe: a checkpoint that is read once for each expert"
    killed_by = SAVED

    @torch.no_grad()
    def load_full(self, parameters: Mapping[str, torch.Tensor], optimizer_state: Any = None) -> None:
        for name, parameter in self.module.named_parameters():
            if self.groups[name] is dist.group.WORLD or dist.get_rank(self.groups[name]) == 0:
                parameter.copy_(parameters[name])


class SavesItsOwnParameters(ExpertParallel):
    """Saves on rank 0 as for dense models; what a checkpoint lacks keeps its initial weights."""

    known_fault = "rank 0 saves its own experts, and the others are begun anew"
    source = "Q13 V https://github.com/facebookresearch/fairscale/issues/1017"
    killed_by = SAVED

    def full_parameters(self) -> dict[str, torch.Tensor]:
        return self.own_parameters()

    def load_full(self, parameters: Mapping[str, torch.Tensor], optimizer_state: Any = None) -> None:
        self.module.load_state_dict(dict(parameters), strict=False)
