"""Faults of optimizers that step in backward, by the hook of each parameter."""

from torch import nn

from lockstep.impls.twins.training import StepsInBackward

STEPS = ("test_a_backward_that_steps_uses_the_mean_of_all_micro_batches_once",)


class StepsInEachMicroBatch(StepsInBackward):
    """Steps whenever a gradient has accumulated, inside `no_sync` with the rank's own."""

    known_fault = "each micro-batch of a window steps, and inside no_sync each rank with its own gradient"
    source = "B27 V https://github.com/pytorch/pytorch/issues/124523"
    killed_by = STEPS

    def on_gradient(self, parameter: nn.Parameter) -> None:
        if self.synchronize:
            self.average(parameter)
        self.step(parameter)


class AveragesAndStepsInEachMicroBatch(StepsInBackward):
    """Takes no heed of `no_sync`: the means add up to the right one, but each of them is stepped."""

    known_fault = "each micro-batch of a window steps with its own mean, after which the next one reads other weights"
    source = "recipe"
    killed_by = STEPS

    def on_gradient(self, parameter: nn.Parameter) -> None:
        self.average(parameter)
        self.step(parameter)


class StepsBeforeTheMean(StepsInBackward):
    """Its hook comes before the one that averages."""

    known_fault = "each rank steps with its own gradient, of which the mean is taken only then"
    source = "recipe"
    killed_by = STEPS

    def on_gradient(self, parameter: nn.Parameter) -> None:
        if self.synchronize:
            self.optimizers[parameter].step()
            self.average(parameter)
            parameter.grad = None


class DropsWhatHasAccumulated(StepsInBackward):
    """Steps by the gradient of the last micro-batch alone, and drops the others."""

    known_fault = "what has accumulated inside no_sync is freed with each micro-batch, and never stepped"
    source = "recipe"
    killed_by = STEPS

    def on_gradient(self, parameter: nn.Parameter) -> None:
        super().on_gradient(parameter)
        parameter.grad = None
