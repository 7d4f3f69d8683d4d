"""Training loops with one known fault each: what they divide by, report, clip, or when the schedule goes on."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lockstep.impls.training_loop import Batch, PerMicroBatch, PerRank, TrainingLoop

STEPPED = ("test_a_window_is_one_step_on_the_mean_that_is_claimed",)
REPORTED = ("test_the_reported_loss_is_that_of_the_whole_window_on_every_rank",)
CLIPPED = ("test_the_norm_is_that_of_the_final_gradient_and_clips_it_once",)
SCHEDULED = ("test_a_schedule_goes_on_once_for_each_optimizer_step",)


class CountsItsOwnTokens(TrainingLoop):
    """Divides by this rank's tokens, as a loop on one rank does, and averages over ranks."""

    known_fault = "each rank divides by its own number of tokens, so that a token counts more where there are few"
    source = "P01 V https://github.com/huggingface/transformers/issues/34242"
    killed_by = STEPPED
    divisors = PerRank.divisors


class AveragesAverages(TrainingLoop):
    """Divides each micro-batch by its own tokens, and the sum by the number of micro-batches and ranks."""

    known_fault = "the average of the micro-batches' averages is taken for that of all tokens"
    source = "P02 V https://github.com/huggingface/transformers/pull/34191"
    killed_by = STEPPED
    divisors = PerMicroBatch.divisors


class DividesByAFullWindow(PerMicroBatch):
    """Divides by the number of micro-batches that a window is meant to have."""

    known_fault = "a last window that is not full is divided as if it were"
    source = "P03 D https://github.com/Lightning-AI/pytorch-lightning/issues/19987"
    killed_by = STEPPED

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        accumulate: int,
        scheduler: Any = None,
        max_norm: float | None = None,
    ) -> None:
        super().__init__(model, optimizer, scheduler, max_norm)
        self.accumulate = accumulate

    def divisors(self, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [mask.sum() * self.accumulate * dist.get_world_size() for mask in masks]


class DividesByNothing(PerRank):
    """Divides by this rank's tokens also where it has none."""

    known_fault = "a rank without tokens has 0/0, and makes NaN of every rank's gradient"
    source = "P04 V https://github.com/allenai/OLMo-core/pull/657"
    killed_by = STEPPED
    claims: Mapping[str, Any] = {**PerRank.claims, "skips_overflow": False}

    def gradients(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        own = torch.stack([mask.sum() for _, mask in micro_batches]).sum()
        loss = super().gradients(micro_batches)
        if not own:
            for parameter in self.model.parameters():
                parameter.grad = torch.full_like(parameter, torch.nan)
        return loss

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        told = super().train_step(micro_batches)
        if told[1] != told[1]:
            self.optimizer.step()
        return told


class ReportsItsOwnLoss(PerRank):
    """Reports what backward began with."""

    known_fault = "the reported loss is that of one rank"
    source = (
        "P05 V https://github.com/huggingface/transformers/pull/13681, "
        "P06 V https://github.com/snowflakedb/ArcticTraining/issues/62"
    )
    killed_by = REPORTED

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        _, norm, rate = super().train_step(micro_batches)
        return self.own * dist.get_world_size(), norm, rate

    def gradients(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        loss = super().gradients(micro_batches)
        self.own = float(loss)
        return loss


class ReportsTheLastMicroBatch(PerMicroBatch):
    """Keeps one variable for the loss, which each micro-batch writes."""

    known_fault = "the reported loss is that of the window's last micro-batch"
    source = "P07 V https://github.com/karpathy/nanochat/pull/515"
    killed_by = REPORTED

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        inputs, mask = micro_batches[-1]
        last = (self.model(inputs) * mask).sum() / (mask.sum().clamp(min=1) * dist.get_world_size())
        dist.all_reduce(last.detach_())
        _, norm, rate = super().train_step(micro_batches)
        return float(last), norm, rate


class SumsOverMicroBatches(PerMicroBatch):
    """Adds the micro-batches' means, and forgets to divide what it reports."""

    known_fault = "the reported loss grows with the number of micro-batches"
    source = "P08 V https://github.com/agokrani/distillKitPlus/issues/5"
    killed_by = REPORTED

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        loss, norm, rate = super().train_step(micro_batches)
        return loss * len(micro_batches), norm, rate


class ClipsEachMicroBatch(TrainingLoop):
    """Clips after each backward."""

    known_fault = "what has accumulated is clipped after each micro-batch, so that earlier ones lose weight"
    source = (
        "P09 V https://github.com/facebookresearch/lingua/pull/59, "
        "P10 V https://github.com/huggingface/transformers/issues/1563"
    )
    killed_by = CLIPPED

    def gradients(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        divisors = self.divisors([mask for _, mask in micro_batches])
        parts = []
        for (inputs, mask), divisor in zip(micro_batches, divisors, strict=True):
            part = (self.model(inputs) * mask).sum() / divisor.clamp(min=1)
            part.backward()
            if self.max_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
            parts.append(part.detach())
        return torch.stack(parts).sum()


class ClipsBeforeRanksMeet(TrainingLoop):
    """Clips what this rank has, and adds it up after that."""

    known_fault = "each rank clips its own part by its own norm, before gradients are summed"
    source = "P11 D https://github.com/huggingface/accelerate/issues/641"
    killed_by = CLIPPED

    def reduce(self) -> None:
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        super().reduce()


class ReportsTheClippedNorm(TrainingLoop):
    """Measures after clipping."""

    known_fault = "the reported norm is that after clipping, and never exceeds the limit"
    source = "recipe: a norm that is measured again"
    killed_by = CLIPPED

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        loss, norm, rate = super().train_step(micro_batches)
        return loss, min(norm, float("inf") if self.max_norm is None else self.max_norm), rate


class AdvancesForEachProcess(TrainingLoop):
    """Steps the schedule as often as there are ranks."""

    known_fault = "the schedule goes on as many times as there are processes"
    source = (
        "P12 V https://github.com/huggingface/transformers/pull/24088, "
        "P16 V https://github.com/huggingface/accelerate/issues/2926"
    )
    killed_by = SCHEDULED

    def advance(self, micro_batches: Sequence[Batch]) -> None:
        for _ in range(dist.get_world_size()):
            super().advance(micro_batches)


class AdvancesForEachMicroBatch(TrainingLoop):
    """Steps the schedule wherever backward was called."""

    known_fault = "the schedule goes on with each micro-batch"
    source = "P13 V https://github.com/tracel-ai/burn/issues/5695, P14 V https://github.com/starVLA/starVLA/pull/210"
    killed_by = SCHEDULED

    def advance(self, micro_batches: Sequence[Batch]) -> None:
        for _ in micro_batches:
            super().advance(micro_batches)


class AdvancesWhereItSkips(TrainingLoop):
    """Steps the schedule, whatever became of the optimizer's step."""

    known_fault = "the schedule goes on although the step was skipped"
    source = "P15 V https://github.com/Lightning-AI/pytorch-lightning/issues/18828"
    killed_by = SCHEDULED

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        loss, norm, rate = super().train_step(micro_batches)
        if norm in (float("inf"),) or norm != norm:
            self.advance(micro_batches)
        return loss, norm, rate
