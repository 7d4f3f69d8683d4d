"""Compare the observations of a real model with the expected values, and report differences with names of modules."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from lockstep.properties.difference import Difference, shown
from lockstep.properties.judging import judge
from lockstep.properties.models.proved import Expected
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.trial import Run
from lockstep.properties.verdict import SilentlyWrong

IN_SHARDS = (
    'Code that holds parameters in shards claims {"stage": 3}; it may tell them whole by full_parameters() or '
    "gather_full_params()."
)


def whole(run: Run, headline: str) -> None:
    """Check that every rank's parameters and gradients have the shapes of the model's own."""
    for rank, seen in enumerate(run.observations):
        given = seen["given"][: len(seen["names"][0])]
        shown = [("parameter", -1, seen["initial"][: len(given)])]
        shown += [("parameter", step, values) for step, values in enumerate(seen["parameters"])]
        shown += [("gradient", step, values) for step, values in enumerate(seen["gradients"])]
        for quantity, place, values in shown:
            for index, (value, wanted) in enumerate(zip(values, given, strict=True)):
                if value is not None and value.shape != wanted.shape:
                    told = f"of shape {value.shape}", f"of shape {wanted.shape}"
                    what = seen["names"][0][index] + ".grad" * (quantity == "gradient")
                    when = f"in step {place}" if place >= 0 else f"after {run.start}"
                    words = f"On rank {rank}, {when}, {what} is {told[0]} where it must be {told[1]}. {IN_SHARDS}"
                    difference = Difference(quantity, place, rank, index, (), value, wanted)
                    raise run.broken(SilentlyWrong, f"{headline} {words}", difference)


def begins_alike(run: Run, headline: str, buffers: bool) -> None:
    """Check that every rank begins with rank 0's parameters.

    ``buffers``: also check the buffers. Set it only if they are claimed and no forward has changed them.
    """
    first = run.observations[0]["given"]
    for rank, seen in enumerate(run.observations):
        count = len(seen["initial"]) if buffers else len(seen["names"][0])
        _compare(run, headline, "parameter", -1, rank, seen["initial"][:count], first[:count])


def gradients(run: Run, expected: Expected, headline: str) -> None:
    """Check that every gradient, after each Finish, is as expected and has the same bits on every rank."""
    for step, wanted in enumerate(expected.gradients):
        for rank, seen in enumerate(run.observations):
            _compare(run, headline, "gradient", step, rank, seen["gradients"][step], wanted)
        replicas(run, headline, "gradients", step)


def parameters(run: Run, expected: Expected, headline: str) -> None:
    """Check that every parameter, after each step, is the optimizer's result from the seen gradients, on every rank."""
    for step, wanted in enumerate(expected.parameters):
        for rank, seen in enumerate(run.observations):
            _compare(run, headline, "parameter", step, rank, seen["parameters"][step], wanted)


def replicas(run: Run, headline: str, kind: str, step: int) -> None:
    """Check that every rank has rank 0's bits. ``kind``: "gradients" or "parameters"."""
    first = run.observations[0][kind][step]
    for rank, seen in enumerate(run.observations):
        _compare(run, headline, kind.removesuffix("s"), step, rank, seen[kind][step], first)


def buffers(run: Run, expected: Expected, headline: str) -> None:
    """Check that every buffer, after each micro-batch, is the result of its rank's forward."""
    for batch, by_rank in enumerate(expected.buffers):
        for rank, seen in enumerate(run.observations):
            _compare(run, headline, "buffer", batch, rank, seen["buffers"][batch], by_rank[rank])


def inputs(run: Run, expected: Expected, headline: str) -> None:
    """Check that the gradient of the inputs, in each micro-batch, is that of the rank's own loss."""
    for batch, by_rank in enumerate(expected.inputs):
        for rank, seen in enumerate(run.observations):
            _compare(run, headline, "input", batch, rank, seen["inputs"][batch], by_rank[rank])


def outputs(run: Run, expected: Expected, headline: str) -> None:
    """Check that a rank's model gives in each evaluation the outputs of the plain model."""
    scenario: Any = run.scenario
    for step, by_rank in enumerate(expected.outputs, scenario.evaluated - 1):
        for rank, seen in enumerate(run.observations):
            outputs = seen["outputs"][step - scenario.evaluated + 1]
            given, wanted = zip(*zip_longest(outputs, by_rank[rank]), strict=True)
            if scenario.yours:
                place = step - scenario.evaluated + 1
                headline_of = f"{headline} {_first_module(seen['inner'][place], expected.inner[place][rank])}".rstrip()
            _compare(run, headline_of if scenario.yours else headline, "output", step, rank, given, wanted)


def _first_module(seen: Sequence[tuple[str, Any]], wanted: Sequence[tuple[str, Any]]) -> str:
    """The first module whose output differs from that of the plain model, in words.

    Empty if there is none, or if modules are not called one by one.
    """
    for (name, values), (other, right) in zip(seen, wanted, strict=False):
        if name != other:
            return ""
        if values.tobytes() != right.tobytes():
            return f"The first module whose output differs is {name}."
    return ""


def _compare(
    run: Run, headline: str, quantity: str, place: int, rank: int, seen: Sequence[Any], wanted: Sequence[Any]
) -> None:
    """Raise SilentlyWrong if values differ.

    ``place``: the step, or the micro-batch for buffers and inputs; -1: construction.
    """
    broken = None
    try:
        judge.compare(run, headline, quantity, place, rank, seen, wanted)
    except SilentlyWrong as found:
        broken = found
    if broken is not None:  # raised outside the handler, as `properties.searching.search` needs it
        assert broken.difference is not None
        words = f"{headline} {_words(run, broken.difference)}"
        raise run.broken(SilentlyWrong, words, broken.difference)


def _words(run: Run, difference: Difference) -> str:
    scenario: Any = run.scenario
    assert isinstance(scenario, ModelScenario)
    parameters, buffers = run.observations[0]["names"]
    outputs = ["its output", *(f"its output {number}" for number in range(2, difference.parameter + 2))]
    kinds = {"buffer": buffers, "input": ["inputs"], "output": outputs}
    names = kinds.get(difference.quantity, [*parameters, *buffers])
    name = names[difference.parameter] + (".grad" if difference.quantity in ("gradient", "input") else "")
    places = {"gradient": "in step", "buffer": "after micro-batch", "input": "in micro-batch"}
    places["output"] = "evaluated after step"
    when = f"{places.get(difference.quantity, 'after step')} {difference.place}"
    when = f"after {run.start}" if difference.place < 0 else when
    told = [shown(values, difference.element) for values in (difference.actual, difference.expected)]
    if difference.kinds:
        told = [f"{value} ({kind})" for value, kind in zip(told, difference.kinds, strict=True)]
    words = f"On rank {difference.rank}, {when}, {name}{difference.at} is {told[0]} where it must be {told[1]}."
    if scenario.yours and difference.quantity in ("gradient", "parameter"):
        module = parameters[difference.parameter].rpartition(".")[0] or "the model itself"
        words += f" The first module whose {difference.quantity} differs is {module}."
    return words
