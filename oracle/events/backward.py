"""Backward: one micro-batch, forward and backward."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from lockstep.oracle import enclosures, joining, lattice, loss_scaling, means
from lockstep.oracle.event import Event
from lockstep.oracle.events.zero_grad import ZeroGrad
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.forwards import turns_of_forwards
from lockstep.oracle.intervals import Interval
from lockstep.oracle.lattice import Inexact, Lattice
from lockstep.oracle.setup import Setup
from lockstep.oracle.short import is_whole
from lockstep.oracle.standing import Standing
from lockstep.oracle.state import State

# What the caller does between the forwards and the backwards of a micro-batch; "": nothing.
MEANWHILE = ("", "evaluates", "drops gradients", "zeroes gradients")
# The origin of the last loss: the outputs of forward; half the outputs, half parameters that the caller reads itself,
# after forward or before it; the gradients of the outputs by the inputs; or half the outputs, half those gradients.
LOSSES = (
    "outputs",
    "outputs, then parameters",
    "parameters, then outputs",
    "gradients",
    "outputs and gradients",
)
# The value of every coefficient of a micro-batch that overflows. With "last" or "first" one element alone is infinite:
# the last element of the last or first parameter that backward reaches.
OVERFLOWS = ("inf", "last", "first", "nan", "-inf")


@dataclass(frozen=True, repr=False)
class Backward(Event):
    """One micro-batch, forward and backward, both inside ``no_sync`` unless it synchronizes.

    Rank r of N holds the samples r*S/N .. (r+1)*S/N - 1 of the S samples. Its loss is the mean of theirs, times the
    loss scale if there is one. Gradients add to those already there. No event divides by the number of micro-batches:
    the caller does that. Forward adds m*N + r + 1 to each buffer element.

        orders       by sample: the parameters that it uses, in the order in which backward reaches them. A parameter
                     that does not occur takes no part. A rank may use none where another uses some; its loss is then of
                     a tensor of the caller's own
        nested       inside ``no_sync``, a second ``no_sync`` is entered and left before forward. The outer one goes on
        together     the ``no_sync`` of the micro-batch right before goes on. If an error has just ended an inner
                     ``no_sync``, the outer one goes on
        overflow     the ranks on which the gradients of this micro-batch are infinite, all or as ``overflows`` says (of
                     `OVERFLOWS`). The gradients that follow from it are then open
        gone         the ranks that have run out of micro-batches
        forwards     the number of forwards before backward. Each coefficient is in one of them and zero in the others,
                     so the sum of the losses has the gradients of a single forward. The last one adds to buffers
        backwards    1: of the sum of the losses. As many as forwards: one through each. With one forward, any number:
                     each goes through the retained graph and adds its gradients
        direct       the forwards call the model itself, not the wrapper
        meanwhile    the caller's act between forwards and backwards (of `MEANWHILE`). If it drops or zeroes gradients,
                     the effect is the same as right before the forwards
        loss         the origin of the last loss (of `LOSSES`); gradients do not depend on it
        metric       right after it the caller sums a number over the ranks: 1 of rank 0, 2 of rank 1, and so on
        ends         inside ``no_sync`` the caller ends the synchronization, as after any other backward. There is none,
                     so nothing changes
    """

    makes_gradients: ClassVar[bool] = True
    reads_gradients: ClassVar[bool] = True
    while_local: ClassVar[bool] = True
    while_joined: ClassVar[bool] = True

    orders: tuple[tuple[int, ...], ...]
    synchronize: bool = True
    nested: bool = False
    overflow: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    forwards: int = 1
    together: bool = False
    backwards: int = 1
    direct: bool = False
    meanwhile: str = ""
    loss: str = LOSSES[0]
    overflows: str = OVERFLOWS[0]
    metric: bool = False
    ends: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("what comes between forward and backward", self.meanwhile, MEANWHILE),
            ("what a loss is made of", self.loss, LOSSES),
            ("what overflows", self.overflows, OVERFLOWS),
        ):
            if value not in known:
                raise ValueError(f"{name} is one of {', '.join(map(repr, known))}, not {value!r}")
        if not is_whole(self.forwards, 1):
            raise ValueError(f"a backward follows at least one forward, not {self.forwards!r}")
        if not is_whole(self.backwards, 1):
            raise ValueError(f"there is at least one backward, not {self.backwards!r}")
        if self.forwards > 1 and self.backwards not in (1, self.forwards):
            raise ValueError(f"{self.forwards} forwards have one backward together or one each, not {self.backwards}")
        if self.nested and self.synchronize:
            raise ValueError("nested=True nests no_sync, and a Backward that synchronizes is not inside any")
        if self.together and self.synchronize:
            raise ValueError("together=True stays in no_sync, and a Backward that synchronizes is not inside any")

        if self.ends and self.synchronize:
            raise ValueError("ends=True is for a Backward inside no_sync; a Finish ends one that synchronizes")

    @property
    def passes(self) -> int:
        """The number of times that backward passes through each forward."""
        return self.backwards if self.forwards == 1 else 1

    @property
    def zeroes(self) -> ZeroGrad | None:
        """The event between its forwards and its backwards that zeroes gradients, if there is one."""
        return ZeroGrad(self.meanwhile == "drops gradients") if self.meanwhile.endswith(" gradients") else None

    @property
    def ends_gradients(self) -> bool:
        """True if it drops or zeroes them."""
        return self.zeroes is not None

    @property
    def evaluates(self) -> bool:
        """True if the caller evaluates between forward and backward."""
        return self.meanwhile == "evaluates"

    @property
    def holds_no_sync(self) -> bool:
        """True if it is inside ``no_sync``."""
        return not self.synchronize

    def uses_gradients(self, state: State) -> bool:
        """True unless it has dropped or zeroed them: it adds to those that are there."""
        return self.zeroes is None

    def samples_of(self, rank: int, world_size: int) -> tuple[tuple[int, ...], ...]:
        """The orders of a rank's samples."""
        each = len(self.orders) // world_size
        return self.orders[rank * each : (rank + 1) * each]

    def order(self, rank: int, world_size: int) -> tuple[int, ...]:
        """The order in which backward reaches the parameters on a rank: that of first use among its samples."""
        return tuple(dict.fromkeys(index for order in self.samples_of(rank, world_size) for index in order))

    def with_each_order(self, change: Callable[[tuple[int, ...]], Iterable[int]]) -> "Backward":
        """The same with another order for each sample."""
        return replace(self, orders=tuple(tuple(change(order)) for order in self.orders))

    def check(self, setup: Setup, before: Standing) -> None:
        """Samples are shared evenly; ranks that are there use trained parameters; ranks that are gone use none."""
        if before.gone is not None and (self.direct or self.meanwhile or self.metric):
            raise ValueError(f"{self!r} is in a join, where ranks that have run out follow nothing but the wrapper")
        if self.meanwhile == "evaluates" and setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open when buffers that are broadcast are broadcast next: have none")
        if self.zeroes is not None:
            self.zeroes.check(setup, before)
            before = self.zeroes.after(setup, before)
        samples, ranks = len(self.orders), setup.world_size
        if samples % ranks or samples < 1:
            raise ValueError(f"{samples} samples cannot be shared evenly by {ranks} ranks")
        if before.samples not in (0, samples):
            raise ValueError(f"a Backward orders {samples} samples where the first ordered {before.samples}")
        if self.overflow and (setup.loss_scale is None or setup.probe != "linear"):
            raise ValueError(f"an overflow on ranks {self.overflow} takes a loss scale and the linear probe")
        if not set(self.overflow) <= set(range(ranks)):
            raise ValueError(f"an overflow on ranks {self.overflow}, of which there are {ranks}")
        for order in self.orders:
            if len(set(order)) != len(order) or not set(order) <= before.trained:
                raise ValueError(f"the order {order} does not name trainable parameters once each")
        self._check_gone(ranks, before.gone)
        if not any(self.orders):
            raise ValueError(f"no rank uses a parameter in micro-batch {before.batch}, so there is no backward to run")
        if self.synchronize and self.forwards > 1 and before.local and setup.buffers and setup.broadcast_buffers:
            raise ValueError(f"{self!r} leaves open before which forward buffers are broadcast: have none")

    def _check_gone(self, ranks: int, before: tuple[int, ...] | None) -> None:
        gone = {*self.gone}
        if before is None and not gone:
            return
        if before is None or not {*before} <= gone < {*range(ranks)} or len(gone) < len(self.gone):
            has = "no Join" if before is None else f"{sorted(before)} gone before"
            raise ValueError(f"ranks {self.gone} of {ranks} cannot be gone after {has}")
        if any(order for rank in gone for order in self.samples_of(rank, ranks)):
            raise ValueError(f"{self!r} has a micro-batch for a rank that is gone")

    def after(self, setup: Setup, before: Standing) -> Standing:
        """There are gradients, and perhaps infinite ones."""
        if self.zeroes is not None:
            before = self.zeroes.after(setup, before)
        over = (rank for rank in self.overflow if any(setup.parameters[each].count for each in self._used(setup, rank)))
        return before._replace(
            gradients=True,
            local=not self.synchronize,
            unfinished=self.synchronize,
            overflowed=before.overflowed.union(over) if self.overflow else before.overflowed,
            gone=None if before.gone is None else self.gone,
            batch=before.batch + 1,
            samples=len(self.orders),
        )

    def _used(self, setup: Setup, rank: int) -> tuple[int, ...]:
        return self.order(rank, setup.world_size)

    def apply(self, state: State, place: int, told: Expectation) -> None:
        """Adds each rank's gradients to those there; changes the buffers."""
        setup, ranks, batch = state.setup, state.setup.world_size, state.batch
        times = state.multiplied
        if times is not None and times > min(form.largest for form in state.form.forms):
            raise Inexact(f"a loss scale of {times:g}, with what hooks make of it, overflows in a format of the model")
        if self.zeroes is not None:
            self.zeroes.apply(state, place, told)
        joining.leave(state, self.gone)
        for buffer in state.buffers:
            if setup.broadcast_buffers and state.broadcast_due:
                buffer[:] = buffer[0]
            if setup.mode == "train":
                buffer += batch * ranks + 1 + np.arange(ranks, dtype=np.float32)[:, None]
        state.broadcast_due = self.synchronize
        for _ in range(self.passes):
            self._accumulate(state)
        for rank in range(ranks):
            used = [setup.tensor(parameter) for parameter in self._used(setup, rank)]
            state.has[rank, used] = True
            if rank in self.overflow:
                state.infinite[rank, [tensor for tensor in used if setup.parameters[tensor].count]] = True
        state.batch += 1
        if state.buffers:
            told.buffers[place] = _told_buffers(state)
        if self.metric:
            told.metrics[place] = np.asarray(sum(range(1, ranks + 1)), dtype=np.float32)

    def _accumulate(self, state: State) -> None:
        """Add the gradients of one backward through all forwards.

        Some implementations average each micro-batch inside ``no_sync`` as it comes. Many average after each of several
        backwards that synchronize.
        """
        local, coefficients = self._local_gradients(state)
        for tensor in state.setup.tensors:
            if tensor in state.gradients.enclosed or (
                state.setup.probe == "quadratic" and tensor in state.weights.enclosed
            ):
                _accumulate_enclosed(state, tensor, coefficients)
                for name in state.setup.names(tensor):
                    local[:, state.gradients.slices[name]] = 0
        eager = state.choices.eager
        several = self.backwards > 1 and (eager or self.synchronize)
        for part in _through_each_forward(state, local, self.forwards) if several else [local]:
            part = _tied_added_up(state, part)
            if several or (eager and (not self.synchronize or state.eager is not None)):
                means.average_eagerly(state, part)
            state.gradients.exact = lattice.add([state.gradients.exact, part], state.form)
            if state.fresh is not None:
                state.fresh = lattice.add([state.fresh, part], state.form)

    def _local_gradients(self, state: State) -> tuple[Lattice, Lattice]:
        """d loss / d p on every rank: c for the linear probe, c * p for the quadratic one, c the mean of its samples.

        Rows are by name: each name of a tied parameter has its own gradient. A parameter that takes no part has zero. c
        itself is multiplied by the loss scale and by the caller's hooks, as the loss is. Shape (ranks, elements).
        """
        setup, form = state.setup, state.form
        per_rank = len(self.orders) // setup.world_size
        table = np.concatenate(state.contributions(state.batch), axis=1)
        totals = table.reshape(setup.world_size, per_rank, -1).sum(axis=1)
        if state.multiplied is not None:  # c is made before it is scaled
            lattice.divide(lattice.from_integers(totals), per_rank, form)
        totals = loss_scaling.scaled(totals, state.multiplied)
        coefficients = lattice.divide(lattice.from_integers(totals), per_rank, form)
        if setup.probe == "linear":
            return coefficients.copy(), coefficients
        weights = state.weights.exact.copy()
        for index, parameter in enumerate(setup.parameters):
            if parameter.tied is not None:
                weights[state.weights.slices[index]] = weights[state.weights.slices[parameter.tied]]
        if (self._multiplied(state) & (((totals == 0) & (weights < 0)) | ((totals < 0) & (weights == 0)))).any():
            raise Inexact("zero times a negative number is -0.0, which the lattice does not have")
        return lattice.divide(lattice.multiply(totals, weights, form), per_rank, form), coefficients

    def _multiplied(self, state: State) -> npt.NDArray[np.bool_]:
        """True where a rank multiplies by the exact weight of an element. Shape (ranks, elements)."""
        setup = state.setup
        used = np.zeros((setup.world_size, len(setup.parameters)), dtype=bool)
        for rank, uses in enumerate(used):
            order = self._used(setup, rank)
            uses[[index for index in order if setup.tensor(index) not in state.weights.enclosed]] = True
        return np.repeat(used, [parameter.count for parameter in setup.parameters], axis=1)


def _through_each_forward(state: State, local: Lattice, forwards: int) -> list[Lattice]:
    """The gradient of each of these backwards (`oracle.forwards.by_forward`): some elements, zeros for the others."""
    parameters = enumerate(state.setup.parameters)
    turns = np.concatenate([turns_of_forwards(index, parameter.count, forwards) for index, parameter in parameters])
    return [np.where(turns == forward, local, 0) for forward in range(forwards)]


def _tied_added_up(state: State, local: Lattice) -> Lattice:
    """Gradients by name as gradients by tensor, which stand under its first name."""
    tied = {parameter.tied for parameter in state.setup.parameters if parameter.tied is not None}
    local = local.copy() if tied else local
    for tensor in tied:
        names = state.setup.names(tensor)
        parts = [local[:, state.gradients.slices[name]] for name in names]
        # With what is there already: autograd may add the names' parts one by one, in any order.
        for held in state.accumulated:
            lattice.add([*parts, held[:, state.gradients.slices[tensor]]], state.forms[tensor])
        total = lattice.add(parts, state.forms[tensor])
        for name in names:
            local[:, state.gradients.slices[name]] = total if name == tensor else 0
    return local


def _accumulate_enclosed(state: State, tensor: int, coefficients: Lattice) -> None:
    """RN(g + RN(c p)), for parameters or gradients that are intervals."""
    form = state.setup.parameters[tensor].dtype
    terms = [enclosures.as_interval(state.gradients.get(tensor))]
    for name in state.setup.names(tensor):
        part = enclosures.coefficients_fit(coefficients[:, state.weights.slices[name]], state.forms[tensor])
        if state.setup.probe == "quadratic":
            weights = enclosures.as_interval(state.weights.get(tensor))
            wide = Interval(np.broadcast_to(weights.low, part.low.shape), np.broadcast_to(weights.high, part.low.shape))
            part = (part * wide).round(form)
        terms.append(part)
    total = enclosures.in_either(lambda name: enclosures.add(terms, name), form, state.kept[tensor])
    state.gradients.put(tensor, total)


def _told_buffers(state: State) -> list[list[npt.NDArray[np.float32]]]:
    shapes = [buffer.shape for buffer in state.setup.buffers]
    return [
        [values[rank].reshape(shape).copy() for values, shape in zip(state.buffers, shapes, strict=True)]
        for rank in range(state.setup.world_size)
    ]
