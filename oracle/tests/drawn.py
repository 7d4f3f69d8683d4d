"""Small scenarios of every kind the vocabulary has, for the tests of the oracle: not only what laws draw."""

from dataclasses import replace

from hypothesis import strategies as st

from lockstep.oracle.caller import Caller
from lockstep.oracle.events import (
    ActAlone,
    Backward,
    CopyGradients,
    Duplicate,
    Event,
    Finish,
    Move,
    Step,
    SwapWeights,
    Write,
    ZeroGrad,
)
from lockstep.oracle.events.backward import MEANWHILE
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.model import Group, Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import MODES, PROBES, SIGNS

SHAPES = ((1,), (2,), (), (2, 2), (0,), (3,))

# Events that change no value, but for `DropLoss`, which needs a trained parameter.
STILL = (Move(), CopyGradients(), SwapWeights(), Duplicate(), ActAlone(0))


@st.composite
def scenarios(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(FORMATS)) -> Scenario:
    """Any well-formed scenario: frozen, empty and tied parameters, several samples a rank, samples that use nothing,
    an optimizer or several, what a caller writes.
    """
    world_size, per_rank = draw(st.sampled_from((2, 1, 3, 4, 5, 7, 8))), draw(st.sampled_from((1, 2, 3)))
    model = draw(
        st.lists(st.builds(Parameter, st.sampled_from(SHAPES), st.sampled_from(dtypes), st.booleans()), max_size=2)
    )
    model.insert(
        draw(st.integers(0, len(model))), Parameter(draw(st.sampled_from(SHAPES)), draw(st.sampled_from(dtypes)))
    )
    for tied in draw(st.lists(st.integers(0, len(model) - 1), max_size=1)):
        model.append(replace(model[tied], tied=tied))
    trained = [index for index, parameter in enumerate(model) if parameter.trainable]
    # A rank's first sample uses something, so that there is a backward to run.
    some, any_ = (
        st.tuples(st.permutations(trained), st.integers(least, len(trained))).map(
            lambda drawn: tuple(drawn[0][: drawn[1]])
        )
        for least in (1, 0)
    )
    tensors = [index for index, parameter in enumerate(model) if parameter.tied is None]
    each = tuple(Group((index,)) for index in tensors)
    groups = draw(st.sampled_from(((), each[1:], each)))
    steps = st.builds(Step, st.none() | st.sampled_from(_stepped(groups, tensors)))
    program: list[Event] = []
    local = False
    phases = ("local", "synchronize", "step", "drop", "zero", "write", "still")
    for phase in [*draw(st.lists(st.sampled_from(phases), max_size=6)), "synchronize"]:
        if phase in ("local", "synchronize"):
            orders = tuple(draw(any_ if sample % per_rank else some) for sample in range(world_size * per_rank))
            local = phase == "local"
            late = draw(st.sampled_from((MEANWHILE[0],) * 4 + MEANWHILE[2:]))
            program += [Backward(orders, not local, meanwhile=late), *([] if local else [Finish()])]
        elif phase in ("drop", "zero"):
            program.append(ZeroGrad(phase == "drop"))
            local = local and phase == "zero"
        elif phase == "still":
            event = draw(st.sampled_from(STILL))
            program += [event] if event.while_local or not local else []
        elif phase == "write" and not local:
            program.append(Write(tuple(draw(st.lists(st.sampled_from(tensors), unique=True)))))
        elif not local:
            program.append(draw(steps))
    cap = draw(st.none() | st.integers(1, 40))
    probe, learning_rate = draw(st.sampled_from(PROBES)), draw(st.sampled_from((0.5, 0.25, 1.0)))
    only = draw(_contribution(program, model)) if probe == "linear" else None
    signs, mode = draw(st.sampled_from(SIGNS)), draw(st.sampled_from(MODES))
    roles = st.permutations(range(world_size)).map(tuple)
    doublings = st.tuples(*[st.sampled_from((0, 0, 0, 1, 3))] * 2)
    return Scenario(
        world_size,
        tuple(model),
        tuple(program),
        probe=probe,
        bucket_cap=cap,
        learning_rate=learning_rate,
        only=only,
        groups=groups,
        signs=signs,
        mode=mode,
        caller=draw(doublings.map(lambda drawn: Caller(hooked=drawn[0], module_hooked=drawn[1]))),
        roles=draw(st.just(()) | roles),
        registered=draw(st.just(()) | st.permutations(range(len(model))).map(tuple)),
    )


def _stepped(groups: tuple[Group, ...], tensors: list[int]) -> list[tuple[int, ...]]:
    """Groups that may be stepped together: each alone, and all, the last first."""
    some = [number for number in range(len(groups) + 1) if number or len(groups) < len(tensors)]
    return [*((number,) for number in some), tuple(some[::-1])]


def _contribution(program: list[Event], model: list[Parameter]) -> st.SearchStrategy[tuple[int, int, int, int] | None]:
    """None, or the place of one contribution, for ``Scenario.only``."""
    batches = [event for event in program if isinstance(event, Backward)]
    places = [
        (batch, sample, parameter, element)
        for batch in range(len(batches))
        for sample in range(len(batches[0].orders))
        for parameter in range(len(model))
        for element in range(model[parameter].count)
    ]
    return st.none() | st.none() | st.sampled_from(places) if places else st.none()
