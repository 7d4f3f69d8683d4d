"""Training loops that are right in unusual ways."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from lockstep.impls.training_loop import Batch, TrainingLoop, summed


class DividesAtTheEnd(TrainingLoop):
    """Accumulates sums, and divides gradients and loss when all ranks' tokens are counted."""

    odd = "gradients are sums until the window ends, and the count goes over the wire with the last one"

    def divisors(self, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.tokens = torch.stack([mask.sum() for mask in masks]).sum()
        return [torch.ones_like(self.tokens)] * len(masks)

    def reduce(self) -> None:
        flat = torch.cat([self.tokens.reshape(1), *(each.grad.reshape(-1) for each in self.model.parameters())])
        dist.all_reduce(flat)
        self.total = flat[0].clamp(min=1)
        for parameter, whole in zip(self.model.parameters(), flat[1:].split(1), strict=True):
            parameter.grad.copy_(whole / self.total)

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        loss, norm, rate = super().train_step(micro_batches)
        return loss / float(self.total), norm, rate


class WeighsMeans(TrainingLoop):
    """Takes the mean of each micro-batch, and weighs it by its tokens; what it reports is in float32."""

    odd = "each micro-batch's mean is multiplied by its share of the tokens, and the loss is added up in float32"

    def gradients(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        total = summed(torch.stack([mask.sum() for _, mask in micro_batches]).sum()).clamp(min=1)
        reported = torch.zeros(1)
        for inputs, mask in micro_batches:
            mean = (self.model(inputs) * mask).sum() / mask.sum().clamp(min=1)
            part = mean * (mask.sum() / total)
            part.backward()
            reported += part.detach().float()
        return reported
