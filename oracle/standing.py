"""The standing of a program between two events: all facts that follow from the events alone, without any value."""

from typing import NamedTuple

from lockstep.oracle import hyperparameters
from lockstep.oracle.hyperparameters import Settings
from lockstep.oracle.setup import Setup


class Standing(NamedTuple):
    """The facts before an event. Parameters are indices, under every name of a tensor; ``settings`` are by group.

    when_wrapped    the parameters that were trained when the model was wrapped last
    saved           the settings at the last Save since everything was built; None: there is none
    gradients       some rank may have gradients, zeros included
    averages        there are means that nobody has dropped or zeroed
    local           gradients have accumulated that are not synchronized
    unfinished      Finish comes next
    leftover        a Freeze has just come while there were gradients
    unscaled        Unscale has come since the last Step
    built           nothing has come since construction
    overflowed      the ranks that have infinite gradients
    gone            the ranks that have run out of micro-batches; None outside of a join
    divide_by       the divisor of means inside a join, or ""
    joined          there has been a join
    momentum        some group has had momentum
    batch           the number of micro-batches so far
    samples         the number of samples in each micro-batch; 0: none has come
    window          the number of ZeroGrads so far
    """

    trained: frozenset[int]
    when_wrapped: frozenset[int]
    settings: Settings
    saved: Settings | None = None
    gradients: bool = False
    averages: bool = False
    local: bool = False
    unfinished: bool = False
    leftover: bool = False
    unscaled: bool = False
    built: bool = True
    overflowed: frozenset[int] = frozenset()
    gone: tuple[int, ...] | None = None
    divide_by: str = ""
    joined: bool = False
    momentum: bool = False
    batch: int = 0
    samples: int = 0
    window: int = 0

    def without_gradients(self) -> "Standing":
        """The same after gradients became None everywhere."""
        return self._replace(gradients=False, averages=False, overflowed=frozenset())


def at_the_start(setup: Setup) -> Standing:
    """The standing after construction. Raises ValueError for hyper-parameters that no optimizer takes together."""
    trained = frozenset(index for index, parameter in enumerate(setup.parameters) if parameter.trainable)
    settings = hyperparameters.at_the_start(setup)
    return Standing(trained, trained, settings, momentum=hyperparameters.any_momentum(settings))
