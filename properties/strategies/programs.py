"""Events in any order that a training loop could have; every micro-batch ends up synchronized."""

from collections.abc import Sequence
from functools import partial

from hypothesis import strategies as st

from lockstep.oracle.events import (
    Backward,
    Clip,
    EndJoin,
    Evaluate,
    Event,
    Finish,
    Freeze,
    Join,
    Load,
    Raise,
    Replace,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    Unscale,
    Write,
    ZeroGrad,
)
from lockstep.oracle.model import Parameter
from lockstep.properties.claims import EQUAL_FROM, Claims
from lockstep.properties.strategies.phases import Phase, RankSeed, order
from lockstep.properties.strategies.training import TrainingOptions, choose

USUAL = ("synchronize", "local", "step", "drop gradients", "zero gradients")
INSIDE = ("nested", "together")  # no_sync, in other ways than "local"
JOINS = ("join", "end join")
KEEPS = ("keep", "go back")
SPECIAL = (
    *("clip", "set", "unscale", "overflow", "save", "keep", "go back", "evaluate", "infer", *INSIDE, "drop window"),
    *("freeze", "raise", "replace", *JOINS),
)
NEEDS_CLAIM = {
    "nested": "accumulation",
    "together": "accumulation",
    "drop window": "drops_windows",
    "evaluate": "evaluates",
    "infer": "infers",
    **dict.fromkeys(KEEPS, "reloads"),
    "freeze": "freezing",
    "raise": "survives_errors",
    "replace": "replaced_parameters",
    **dict.fromkeys(JOINS, "joins"),
}
# What goes on while ranks run out of micro-batches; anything else ends that.
WHILE_JOINED = ("synchronize", "local", *INSIDE, "step", "clip", "drop gradients", "zero gradients", "join")
# What is a forward on every rank.
FORWARDS = ("synchronize", "local", *INSIDE, "overflow", "evaluate", "infer")
INF = float("inf")
# What is usual comes first.
NORMS_DRAWN = (2.0, 1.0, INF, 3.0)
RAISES_DRAWN = ("forward", "backward", "hook", "module", "no_sync", "backward", "evaluation")
ABOVE = 2.0**46  # above every norm: the lattice has values below 2**38, a model fewer than 2**8 elements


def kinds(claims: Claims) -> tuple[str, ...]:
    """The kinds of phases that are claimed, usual ones more often."""
    special = [kind for kind in SPECIAL if getattr(claims, NEEDS_CLAIM.get(kind, ""), True)]
    return (*USUAL, *USUAL, "step", *special)


def evaluations(claims: Claims) -> st.SearchStrategy[Evaluate]:
    """An evaluation of each kind that is claimed."""
    return st.builds(partial(evaluation, claims), st.booleans() if claims.infers else st.just(False), st.integers(0, 3))


def evaluation(claims: Claims, inference: bool, form: int) -> Evaluate:
    """An evaluation of one of four forms: as usual, inside `no_sync`, in the mode of training, or both, if claimed."""
    stays, local = (form // 2 % 2, form % 2) if claims.measures_losses else (0, 0)
    return Evaluate(inference, not stays, not (local and claims.accumulation))


class Loop:
    """Writes the events of a program, phase by phase, and before each what it takes. ``clips_at``: the places of Clip
    events whose maximum is still to become the norm.
    """

    def __init__(
        self,
        claims: Claims,
        ranks: Sequence[RankSeed],
        model: tuple[Parameter, ...],
        caller: TrainingOptions,
        exact: bool,
        broadcasts: bool,
    ) -> None:
        self.claims, self.ranks, self.model, self.caller = claims, ranks, model, caller
        self.exact, self.broadcasts = exact, broadcasts
        self.trained = tuple(index for index, parameter in enumerate(model) if parameter.trainable)
        self.tensors = tuple(index for index, parameter in enumerate(model) if parameter.tied is None)
        self.when_wrapped = set(self.trained)
        self.events: list[Event] = []
        self.clips_at: list[int] = []
        self.local = self.gradients = self.averages = self.infinite = self.unscaled = False
        self.kept = False  # whether something was saved since all was built
        self.gone: tuple[int, ...] | None = None  # the ranks that have run out of micro-batches; None: nobody may

    def write(self, phases: Sequence[Phase]) -> tuple[Event, ...]:
        """The program."""
        for phase in phases:
            self.add(phase)
        self.end_join()
        # What has been done is to be seen: a backward follows it, and a step where hyper-parameters have changed.
        last = {type(event): place for place, event in enumerate(self.events)}
        if last.get(Finish, -1) <= max(
            last.get(kind, -1) for kind in (Backward, Freeze, Replace, Write, SaveAndLoad, Load, Evaluate, Raise)
        ):
            self.backward(Phase("synchronize"))
        if last.get(Step, -1) < last.get(SetHyperparameters, -1):
            self.add(Phase("step"))
        return tuple(self.events)

    def add(self, phase: Phase) -> None:
        """The event of a phase, if the loop can have it here, after what it takes."""
        if phase.kind not in WHILE_JOINED:
            self.end_join()
        constructed = not self.events or isinstance(self.events[-1], SaveAndLoad)
        if constructed and self.claims.equal_from != EQUAL_FROM[0] and phase.kind not in FORWARDS:
            self.backward(phase)
        match phase.kind:
            case "synchronize":
                self.backward(phase)
            case "local" | "nested":
                if self.claims.accumulation:
                    self.backward(phase, False, nested=phase.kind == "nested")
            case "together":
                if self.claims.accumulation:
                    last = self.events[-1] if self.local else None
                    if not isinstance(last, Backward) or last.gone != (self.gone or ()):
                        self.backward(phase, False)
                    self.backward(phase, False, together=True)
            case "overflow":
                if self.caller.loss_scale is not None:
                    self.backward(phase, overflow=True)
            case "step" | "steps of some":
                self.averaged(phase)
                self.events += [Step()] if phase.kind == "step" else self.steps_of_some(phase)
                self.unscaled = False
                if self.caller.hyperparameters.nesterov or not self.claims.outlive_steps:
                    self.zero()  # torch's foreach step, the usual one on a GPU, adds to them for Nesterov's momentum
            case "idle step":
                if self.caller.loss_scale is None:  # which follows the overflows of gradients
                    self.settled(phase)
                    if self.gradients:
                        self.zero()
                    self.events.append(Step())
            case "clip":
                self.clip(phase)
            case "unscale":
                if self.caller.loss_scale is not None and not self.unscaled:
                    self.averaged(phase)
                    self.events.append(Unscale())
                    self.unscaled = True
            case "drop gradients" | "zero gradients":
                self.averaged(phase)
                self.zero(phase.kind == "drop gradients")
            case "drop window":
                if self.claims.accumulation and not self.broadcasts:
                    if not self.local:
                        self.backward(phase, False)
                    self.zero(phase.shift % 2 == 0)
            case "set":
                self.settled(phase)
                group = None if phase.shift == 0 else (phase.shift - 1) % (len(self.caller.groups) + 1)
                self.events.append(SetHyperparameters(choose(self.caller.changes, phase.twist, self.exact), group))
            case "freeze":
                self.freeze(phase)
            case "replace":
                self.settled(phase)
                if self.gradients:
                    self.zero()
                self.events.append(Replace((self.tensor(phase),)))
            case "write":
                if not self.caller.masters:
                    self.settled(phase)
                    self.events.append(Write((self.tensor(phase),) if phase.twist % 2 == 0 else self.tensors))
            case "save":
                self.settled(phase)
                self.events.append(SaveAndLoad(phase.shift % 3 != 2))
                self.gradients = self.averages = self.infinite = self.unscaled = False
                self.when_wrapped, self.kept = set(self.trained), False
            case "keep":
                self.keep(phase)
            case "go back":
                self.settled(phase)
                if not self.kept:
                    self.keep(phase)
                self.events.append(Load(phase.shift % 3 != 2))
                self.gradients = self.averages = self.infinite = self.unscaled = False
            case "evaluate" | "infer":
                if not self.broadcasts:
                    self.settled(phase)
                    self.events.append(evaluation(self.claims, phase.kind == "infer", phase.twist))
            case "raise":
                self.error(phase)
            case "join":
                self.join(phase)
            case "end join":
                pass  # what comes before it has ended the window
            case unknown:
                raise ValueError(f"there is no phase {unknown!r}")

    def tensor(self, phase: Phase) -> int:
        """The tensor that an event is about: the last, unless a number is drawn."""
        return self.tensors[-1 - phase.shift % len(self.tensors)]

    def steps_of_some(self, phase: Phase) -> list[Event]:
        """Each of the caller's optimizers steps, the last first; the last alone; the last, and then the others; or the
        first alone.
        """
        first = set(self.tensors).difference(*(group.parameters for group in self.caller.groups))
        numbers = [number for number in range(len(self.caller.groups) + 1) if number or first]
        if self.caller.loss_scale is not None:
            return [Step()]
        form = phase.twist % 4
        if form == 2 and len(numbers) > 1:
            return [Step((numbers[-1],)), Step((*numbers[:-1],))]
        return [Step(((*numbers[::-1],), (numbers[-1],), (numbers[-1],), (numbers[0],))[form])]

    def backward(self, phase: Phase, synchronize: bool = True, overflow: bool = False, **inside: bool) -> None:
        """One micro-batch. ``inside``: how it is inside `no_sync`."""
        # Ranks that are gone have no average any more: who adds the mean of what is new to it has another than who adds
        # it first.
        if self.averages and (self.gone is not None or not self.claims.adds_to_averages):
            self.zero()
        gone = self.gone or ()
        orders = tuple(
            () if number in gone else order(rank, phase, self.trained, self.claims)
            for number, rank in enumerate(self.ranks)
        )
        over = (phase.shift % len(self.ranks),) if overflow else ()
        self.events.append(Backward(orders, synchronize, overflow=over, gone=gone, **inside))
        self.events += [Finish()] if synchronize else []
        self.local, self.gradients, self.infinite = not synchronize, True, self.infinite or overflow
        self.averages = self.averages or synchronize

    def settled(self, phase: Phase) -> None:
        """Synchronizes what is accumulated, if anything is."""
        if self.local:
            self.backward(phase)

    def averaged(self, phase: Phase) -> None:
        """Sees to it that there are gradients, all synchronized."""
        if self.local or not self.gradients:
            self.backward(phase)

    def zero(self, to_none: bool = True) -> None:
        """Drops gradients, or sets them to zero."""
        self.events.append(ZeroGrad(to_none))
        self.infinite = self.averages = False
        self.gradients = self.gradients and not to_none
        self.local = self.local and not to_none  # zeros, which some ranks may have and others not

    def keep(self, phase: Phase) -> None:
        """Saves what a later "go back" loads."""
        self.settled(phase)
        self.events.append(Save())
        self.kept = True

    def clip(self, phase: Phase) -> None:
        """To a norm that is below, at or above that of the gradients. After an overflow, as in any loop with a loss
        scale: gradients are unscaled and clipped, the step is skipped, and they are dropped.
        """
        self.settled(phase)
        if self.infinite and self.unscaled:
            self.zero()  # Unscale may have come before the overflow
        self.averaged(phase)
        if self.infinite:
            self.add(Phase("unscale"))
        exact = self.exact and not self.infinite  # an infinite norm is as good as any other
        empty = any(parameter.count == 0 for parameter in self.model)
        norms = [norm for norm in NORMS_DRAWN if (norm in (1, INF) or not exact) and not (empty and norm == INF)]
        relation = phase.shift % 3 if not exact else 2
        if relation == 1 and not self.infinite:
            self.clips_at.append(len(self.events))
        above = (ABOVE, INF)[phase.shift // 3 % 2]
        self.events.append(Clip(1.0 if relation == 0 else above, norms[phase.twist % len(norms)]))
        if self.infinite:
            self.add(Phase("step"))
            if self.gradients:
                self.zero()

    def freeze(self, phase: Phase) -> None:
        """One tensor; or again one that was trained when the model was wrapped, or any where that is claimed. Some
        parameter stays trained.

        Gradients are dropped right before, or right after, so that only what is trained then counts.
        """
        tensor = self.tensor(phase)
        names = {index for index, parameter in enumerate(self.model) if tensor in (index, parameter.tied)}
        left = tuple(index for index in self.trained if index not in names)
        thaws = tensor not in self.trained
        if not left or (thaws and tensor not in self.when_wrapped and not self.claims.unfreezing):
            return
        self.settled(phase)
        if self.gradients and phase.twist % 2 == 0:
            self.zero()
        self.events.append(Freeze((tensor,), not thaws))
        if self.gradients:
            self.zero()
        self.trained = tuple(sorted({*self.trained, *names})) if thaws else left

    def join(self, phase: Phase) -> None:
        """Ranks run out of micro-batches, perhaps before they are synchronized: the last that is there, and perhaps
        another after one more micro-batch; all but the first; or the first.
        """
        if self.gone is None:
            self.settled(phase)
            divisors = self.claims.joins
            self.events.append(Join(divisors[phase.shift // 2 % len(divisors)]))
            self.gone = ()
        if phase.shift % 3 == 1 and self.claims.accumulation:
            self.backward(phase, False)
        form = phase.twist % 4
        self.gone = self.without((slice(-1, None), slice(1, None), slice(1), slice(-1, None))[form])
        if form == 3:
            self.backward(phase)
            self.gone = self.without(slice(-1, None))

    def without(self, leaving: slice) -> tuple[int, ...]:
        """The ranks that are gone, and those of the others; one stays."""
        there = [rank for rank in range(len(self.ranks)) if rank not in (self.gone or ())]
        return tuple(sorted({*(self.gone or ()), *(there[leaving] if len(there) > 1 else ())}))

    def end_join(self) -> None:
        """Every rank has run out, the last ones after a micro-batch without the others."""
        if self.gone is not None:
            last = next(event for event in self.events[::-1] if isinstance(event, (Join, Backward)))
            if self.local or isinstance(last, Join) or last.gone != self.gone:
                self.backward(Phase("synchronize"))
            self.events.append(EndJoin())
            self.gone, self.gradients, self.averages = None, False, False

    def error(self, phase: Phase) -> None:
        """The caller's; inside no_sync only where there is one."""
        if self.broadcasts:
            return
        synchronize = not self.claims.accumulation or phase.twist % 2 == 1
        where = RAISES_DRAWN[phase.shift % len(RAISES_DRAWN)]
        if where == "no_sync" and synchronize:
            where = "forward"
        if where == "evaluation":
            where = where if self.claims.evaluates else "module"
            synchronize = synchronize or not self.claims.measures_losses
        # Nor can a rank that gathers parameters run a micro-batch alone, or a module that may have to.
        gathers = self.claims.stage == 3 or (self.claims.stage is not None and where == "module")
        alone = not (synchronize and where in ("backward", "hook")) and not gathers and where != "evaluation"
        rank = -(1 + phase.shift) % len(self.ranks) if alone and phase.twist // 2 % 2 else None
        nested = not synchronize and phase.twist // 4 == 1
        self.events.append(event := Raise(where, rank, synchronize, nested))
        if event.drops_gradients:
            self.gradients = self.averages = self.infinite = False
        if nested:
            self.backward(phase, False, together=True)
