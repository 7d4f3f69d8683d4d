"""Training loops as accelerate's guide writes them, by micro-batches and by tokens. They need the package accelerate.

The guide: https://huggingface.co/docs/accelerate/en/usage_guides/gradient_accumulation. Its state is one for
each process, so that only real processes can run it.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from lockstep.impls.frameworks.accelerate_data import accelerator
from lockstep.impls.training_loop import Batch


class AccelerateLoop:
    """The guide's "finished code", with `accumulate`. Each window is an epoch of its loader, which ends there.

    The loss function takes the mean over a micro-batch, and `backward` the one over micro-batches: accelerate "will
    automatically know whether to step through the prepared optimizer and how to adjust the loss".
    """

    # A step is skipped by a loss scale alone, which needs a GPU (`step_was_skipped` in `accelerate/optimizer.py`).
    claims: Mapping[str, Any] = {"loop": True, "loss_mean": "micro-batch"}
    why: Mapping[str, str] = {
        "loop": 'the "finished code" of the guide on gradient accumulation',
        "loss_mean": 'it "will automatically know" "how to adjust the loss", a mean over each micro-batch',
    }

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        accumulate: int,
        scheduler: Any = None,
        max_norm: float | None = None,
    ) -> None:
        # With `split_batches=False` a scheduler goes on once for each process:
        # https://huggingface.co/docs/accelerate/en/concept_guides/performance#learning-rates
        self.accelerator = accelerator(accumulate, split_batches=True)
        self.accumulate, self.max_norm = accumulate, max_norm
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.scheduler = None if scheduler is None else self.accelerator.prepare(scheduler)

    def loader(self, micro_batches: Sequence[Batch]) -> Iterable[Batch]:
        """A prepared loader that gives these on this rank; each rank has its own at its places of a batch."""
        size = self.accelerator.num_processes
        whole = [each for each in micro_batches for _ in range(size)]
        found: Iterable[Batch] = self.accelerator.prepare(DataLoader(whole, size, collate_fn=lambda each: each[0]))
        return found

    def finish(self) -> tuple[float | None, float]:
        """The lines of the guide after `backward`; the norm and the learning rate of a step, if one is due here."""
        norm = None
        if self.accelerator.sync_gradients and self.max_norm is not None:
            norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.max_norm))
        rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return norm, rate

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float | None, float]:
        """An epoch of one window; the loss is gathered."""
        losses = []
        for inputs, mask in self.loader(micro_batches):
            with self.accelerator.accumulate(self.model):
                loss = (self.model(inputs) * mask).sum() / mask.sum().clamp(min=1)
                self.accelerator.backward(loss)
                losses.append(loss.detach())
                norm, rate = self.finish()
        return float(self.accelerator.gather(torch.stack(losses)).mean()), norm, rate


class AccelerateTokens(AccelerateLoop):
    """The guide's "Gradient accumulation on training samples of variable size", which counts the window's tokens first.

    The guide does not say what a window without any token is; it divides by zero. This loop divides by one.
    """

    claims: Mapping[str, Any] = {"loop": True, "loss_mean": "tokens"}
    why: Mapping[str, str] = {
        "loop": 'the guide, under "Gradient accumulation on training samples of variable size"',
        "loss_mean": "the guide counts the tokens of the window first",
    }

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float | None, float]:
        """One step on batches that are loaded beforehand; the loss is gathered as in accelerate's example.

        It is `examples/by_feature/gradient_accumulation_for_autoregressive_models.py`.
        """
        size = self.accelerator.num_processes
        tokens = torch.stack([mask.sum() for _, mask in micro_batches]).sum()
        number = max(self.accelerator.gather(tokens).sum().item(), 1)
        losses = []
        for place, (inputs, mask) in enumerate(micro_batches):
            waits = place < len(micro_batches) - 1 and size > 1
            with self.model.no_sync() if waits else contextlib.nullcontext():
                loss = (self.model(inputs) * mask).sum() * self.accumulate * size / number
                self.accelerator.backward(loss)
                losses.append(loss.detach())
        norm, rate = self.finish()
        return float(self.accelerator.gather(torch.stack(losses).sum()).sum()) / (size * self.accumulate), norm, rate
