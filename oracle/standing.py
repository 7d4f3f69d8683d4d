"""The standing of a program between two events: all facts that need no value to be known."""

from typing import NamedTuple

from lockstep.oracle import hyperparameters
from lockstep.oracle.hyperparameters import Settings
from lockstep.oracle.setup import Setup


class Standing(NamedTuple):
    """Parameters go by their indices, under every name of a tensor; ``settings`` by group.

    ``when_wrapped``: the parameters that were trained when the model was wrapped last. ``saved``: the settings of the
    last Save since all was built; None: there is none. ``gradients``: whether some rank may have any, zeros too;
    ``averages``: whether there are means that nobody has dropped or zeroed. ``local``: whether something has
    accumulated that is not synchronized. ``unfinished``: whether Finish comes next. ``leftover``: whether a Freeze has
    just come while there were gradients. ``unscaled``: whether Unscale has come since the last Step. ``built``: whether
    nothing has come since construction. ``overflowed``: the ranks that have infinite gradients. ``gone``: those that
    have run out of micro-batches; None outside of a join. ``divide_by``: what means divide by inside of one, or "".
    ``joined``: whether there has been a join, ``momentum``: whether any group has had momentum. ``batch``: how many
    micro-batches have come, ``samples``: how many each of them has; 0: none has come. ``window``: how many ZeroGrads
    have come.
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
