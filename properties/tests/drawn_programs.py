"""Draws programs of every event, with every option of a training loop."""

from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import (
    ActAlone,
    Backward,
    Clip,
    CopyGradients,
    DropLoss,
    Duplicate,
    Event,
    Finish,
    Freeze,
    Load,
    Move,
    Raise,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    SwapWeights,
    Unscale,
    Write,
    ZeroGrad,
)
from lockstep.oracle.events.backward import MEANWHILE
from lockstep.oracle.model import Buffer, Group, Hyperparameters, LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import MODES, PROBES, SIGNS

INF = float("inf")
PHASES = (*("window",) * 3, "set", "freeze", "save and load", "save", "load", "raise", "zero", "drop", "write", "still")


@st.composite
def hyperparameters(draw: st.DrawFn, optimizer: str) -> Hyperparameters:
    """Short and long numbers, so that some steps are exact and some are not."""
    common: dict[str, Any] = {
        "learning_rate": draw(st.sampled_from((None, 0.5, 0.25, 0.1))),
        "weight_decay": draw(st.sampled_from((None, None, 0.5, 0.01))),
    }
    if optimizer != "SGD":
        betas = draw(st.sampled_from((None, (0.5, 0.75), (0.0, 0.0))))
        return Hyperparameters(**common, betas=betas, eps=draw(st.sampled_from((None, 1e-3))))
    momentum, nesterov = draw(st.sampled_from((0.0, 0.5, 0.9))), draw(st.booleans())
    dampening = 0.0 if nesterov else draw(st.sampled_from((0.0, 0.5, 0.25)))
    return Hyperparameters(**common, momentum=momentum, dampening=dampening, nesterov=nesterov and momentum > 0)


@st.composite
def models(draw: st.DrawFn, dtypes: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Up to four parameters, the last of which may be another name of the first."""
    shapes = st.sampled_from(((1,), (2,), (), (3,), (1, 2)))
    first = Parameter(draw(shapes), draw(st.sampled_from(dtypes)))
    rest = st.builds(Parameter, shapes, st.sampled_from(dtypes), st.sampled_from((True, True, False)))
    model = [first, *draw(st.lists(rest, max_size=2))]
    return (*model, Parameter(first.shape, first.dtype, tied=0)) if draw(st.booleans()) else tuple(model)


@st.composite
def programs(draw: st.DrawFn, most_ranks: int = 4, dtypes: tuple[str, ...] = ("float32", "float64")) -> Scenario:
    """Any scenario of a few windows; a window is some local micro-batches, one that synchronizes, and a step."""
    ranks, optimizer, model = draw(st.integers(1, most_ranks)), draw(st.sampled_from(("SGD", "Adam", "AdamW"))), None
    model, probe = draw(models(dtypes)), draw(st.sampled_from(PROBES))
    scale = draw(st.none() | st.builds(LossScale, st.sampled_from((2.0, 8.0)), st.sampled_from((1, 2, 2000))))
    trained = {index for index, parameter in enumerate(model) if parameter.trainable}
    tensors = [index for index, parameter in enumerate(model) if parameter.tied is None]
    grouped = tuple(draw(st.lists(st.sampled_from(tensors), unique=True))) if draw(st.booleans()) else ()
    groups = (Group(grouped, draw(hyperparameters(optimizer))),) if grouped else ()
    events: list[Event] = []
    gradients = False

    def orders() -> tuple[tuple[int, ...], ...]:
        names = sorted(trained)
        one = st.permutations(names).flatmap(lambda all_: st.integers(0, len(all_)).map(lambda k: tuple(all_[:k])))
        found = tuple(draw(one) for _ in range(ranks))
        return found if any(found) else ((names[0],), *found[1:])

    for phase in draw(st.lists(st.sampled_from(PHASES), min_size=1, max_size=6)):
        if phase == "window" and trained:
            events += [
                draw(st.just(Backward(orders(), False, draw(st.booleans()))) | st.just(Raise("forward", 0)))
                for _ in range(draw(st.integers(0, 2)))
            ]
            events += draw(st.sampled_from(([], [], [], [CopyGradients()], [DropLoss(False)], [Duplicate()])))
            events += draw(st.sampled_from(([], [], [ZeroGrad()], [ZeroGrad(False)])))  # halfway, and after all
            overflows = scale is not None and probe == "linear" and draw(st.sampled_from((False, False, True)))
            overflow = (draw(st.integers(0, ranks - 1)),) if overflows else ()
            late = draw(st.sampled_from((MEANWHILE[0], MEANWHILE[0], *MEANWHILE[2:])))
            events += [Backward(orders(), overflow=overflow, meanwhile=late), Finish()]
            if scale is not None and draw(st.booleans()):
                last = (each for each in events[::-1] if isinstance(each, (Unscale, Step, SaveAndLoad, Load)))
                unscaled = isinstance(next(last, None), Unscale)
                events += [] if unscaled else [Unscale()]
            clips = draw(st.booleans()) and (not overflows or isinstance(events[-1], Unscale))
            if clips:
                norm_type = draw(st.sampled_from((1.0, 2.0, 3.0, INF)))
                events.append(Clip(draw(st.sampled_from((0.5, 1.0, 3.0, 1000.0))), norm_type))
            numbers = [number for number, left in enumerate((set(tensors) - set(grouped), *groups)) if left]
            alone = [(number,) for number in numbers] if scale is None else []
            events.append(Step(draw(st.sampled_from((None, None, None, *alone)))))
            events += [ZeroGrad(draw(st.booleans()))] if clips and overflows else []
            gradients = True
        elif phase in ("zero", "drop") or overflows_left(events):
            events.append(ZeroGrad(phase != "zero"))
            gradients = gradients and phase == "zero"
        elif phase == "set":
            group = draw(st.sampled_from((None, *range(len(groups) + 1))))
            rate = Hyperparameters(draw(st.sampled_from((0.25, 0.1))), weight_decay=draw(st.sampled_from((None, 0.25))))
            events.append(SetHyperparameters(rate, group))
        elif phase == "freeze":
            frozen, chosen = draw(st.booleans()), draw(st.sampled_from(tensors))
            names = {index for index, parameter in enumerate(model) if chosen in (index, parameter.tied)}
            trained = trained - names if frozen else trained | names
            freeze, dropped = Freeze((chosen,), frozen), [ZeroGrad()] if gradients else []
            events += draw(st.sampled_from(([*dropped, freeze], [freeze, *dropped])))
            gradients = False
        elif phase == "still":
            still = (Move(), CopyGradients(), SwapWeights(), Duplicate(), ActAlone(draw(st.integers(0, ranks - 1))))
            drops = [DropLoss(draw(st.booleans()))] if trained else []
            events += draw(st.lists(st.sampled_from((*still, *drops)), min_size=1))
        elif phase == "write":
            events.append(Write(tuple(draw(st.lists(st.sampled_from(tensors), min_size=1, unique=True)))))
        elif phase == "save and load":
            events.append(SaveAndLoad(draw(st.booleans())))
            gradients = False
        elif phase == "save":
            events.append(Save())
        elif phase == "load" and keeps(events):
            events.append(Load(draw(st.booleans())))
            gradients = False
        elif phase == "raise" and trained:
            where = draw(st.sampled_from(("no_sync", "forward", "module", "backward", "hook")))
            rank = draw(st.sampled_from((None, *range(ranks))))
            events.append(Raise(where, rank, nested=draw(st.booleans())))
            gradients = gradients and where in ("no_sync", "forward", "module")
    hooked = 0 if any(isinstance(event, Freeze) for event in events) else draw(st.sampled_from((0, 0, 0, 1, 3)))
    return Scenario(
        ranks,
        model,
        tuple(events),
        probe=probe,
        optimizer=optimizer,
        hyperparameters=draw(hyperparameters(optimizer)),
        groups=groups,
        masters=draw(st.booleans()) and not any(isinstance(event, Write) for event in events),
        loss_scale=scale,
        buffers=draw(st.sampled_from(((), (Buffer((2,)), Buffer(()))))),
        signs=draw(st.sampled_from(SIGNS)),
        mode=draw(st.sampled_from(MODES)),
        caller=Caller(hooked=hooked),
    )


def keeps(events: list[Event]) -> bool:
    """True if something was saved since all was built."""
    last = next((event for event in events[::-1] if isinstance(event, (Save, SaveAndLoad))), None)
    return isinstance(last, Save)


def overflows_left(events: list[Event]) -> bool:
    """True if gradients may still be infinite."""
    return any(isinstance(event, Backward) and event.overflow for event in events[-6:])
