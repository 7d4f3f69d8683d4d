"""The `Trainer` of transformers, an epoch for each window, by tokens and by micro-batches. It needs transformers.

Loss functions: https://huggingface.co/docs/transformers/en/trainer_recipes#custom-loss-function. The rest is from the
docstrings of `Trainer` and `TrainingArguments`. Its state is one for each process, so that only real processes can run
it.
"""

import contextlib
import gc
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lockstep.impls.frameworks.accelerate_data import accelerator
from lockstep.impls.training_loop import Batch

with contextlib.suppress(ImportError):  # claims can be read without it
    from transformers import Trainer, TrainingArguments  # version 5; here, as importing changes the path of imports

    gc.freeze()  # `train` collects garbage, which takes a second among all that is imported

    class Means(Trainer):
        """The mean of each micro-batch. `loss_is_scaled_for_ga` is "`False` if it is a per-batch mean (the Trainer then
        divides it by the number of gradient accumulation steps)".
        """

        loss_is_scaled_for_ga = False

        def compute_loss(self, model: nn.Module, inputs: Mapping[str, torch.Tensor], **_: Any) -> torch.Tensor:
            """The documentation lets a subclass take the place of this method."""
            counts = inputs["labels"].ne(IGNORED)
            return (model(inputs["inputs"]) * counts).sum() / counts.sum().clamp(min=1)


IGNORED = -100  # the label of a token that does not count


def over_all(outputs: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor) -> torch.Tensor:
    """The loss function of the documentation: summed losses over the number of the window's labels that count.

    It does not say what a window without any is; its function divides by zero. This one divides by one.
    """
    return (outputs * labels.ne(IGNORED)).sum() / num_items_in_batch.clamp(min=1)


class TrainerTokens:
    """With a `compute_loss_func`: "`num_items_in_batch` is the number of prediction targets across the full accumulated
    batch", and with `average_tokens_across_devices`, the default, of all ranks.
    """

    # A step is skipped by a loss scale alone, which needs a GPU.
    claims: Mapping[str, Any] = {"loop": True, "loss_mean": "tokens"}
    why: Mapping[str, str] = {
        "loop": "`Trainer.train`",
        "loss_mean": '`num_items_in_batch` is the number of targets "across the full accumulated batch"',
    }

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        accumulate: int,
        scheduler: Any = None,
        max_norm: float | None = None,
    ) -> None:
        accelerator()  # forgets the processes of an earlier one
        self.model = model
        self.optimizers = (optimizer, scheduler or torch.optim.lr_scheduler.ConstantLR(optimizer, 1))
        self.options = TrainingArguments(
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=accumulate,
            max_grad_norm=max_norm or 0,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )

    def trainer(self, **options: Any) -> Any:
        """A `Trainer` with this loss."""
        return Trainer(compute_loss_func=over_all, **options)

    def train_step(self, micro_batches: Sequence[Batch]) -> tuple[float, float, float]:
        """An epoch of one window. The report is that of its log."""
        each = [{"inputs": inputs, "labels": torch.where(mask > 0, 1, IGNORED)} for inputs, mask in micro_batches]
        found = self.trainer(
            model=self.model,
            args=self.options,
            optimizers=self.optimizers,
            train_dataset=[one for one in each for _ in range(int(os.environ["WORLD_SIZE"]))],
            data_collator=lambda batch: batch[0],
        )
        found.train()
        log = found.state.log_history[0]
        return log["loss"], log["grad_norm"], log["learning_rate"]


class TrainerMicroBatches(TrainerTokens):
    """With a `compute_loss` of its own."""

    claims: Mapping[str, Any] = {"loop": True, "loss_mean": "micro-batch"}
    why: Mapping[str, str] = {
        "loop": "`Trainer.train`",
        "loss_mean": '`loss_is_scaled_for_ga` is false where it is "a per-batch mean"',
    }

    def trainer(self, **options: Any) -> Any:
        """A `Trainer` with this loss."""
        return Means(**options)
