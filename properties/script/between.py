"""What the caller does between the events, where a law has asked for it (`properties.conditions.Conditions`)."""

import numpy as np

from lockstep.oracle.events import Backward, Evaluate, Event
from lockstep.oracle.program import Scenario
from lockstep.properties.naming import (
    ALONE,
    COPIES,
    DROPS,
    DUPLICATES,
    METRIC,
    SAVES,
    SWAPS,
)
from lockstep.properties.script import checkpoints
from lockstep.properties.script.seen import compare
from lockstep.properties.script.writer import Writer
from lockstep.properties.seen import OTHER_WEIGHTS

MOVED = ["", "model._apply(torch.clone)  # to new memory, as .to(device) does"]
# Copies in the place of gradients.
COPIED = [f"# {COPIES}", "for p in set(tensors().values()):", "    if p.grad is not None:"]
COPIED += ["        p.grad = p.grad.clone()"]


def halved(writer: Writer, loss: str) -> tuple[list[str], str]:
    """What comes before a forward of half the loss, and all of the loss."""
    p = "tensors()[name]"
    # Of a copy: backward, too, is of what is read here.
    product = p if writer.scenario.probe == "linear" else f"({p} * 1).square() / 2"
    half = f"(torch.tensor(coefficients[{writer.role}][name], dtype={p}.dtype) * {product}).sum()"
    own = f"sum({half} for name in orders[{writer.role}][::-1])"
    return (["own = " + own], f"({loss} + own)") if writer.conditions.half_first else ([], f"({loss} + {own})")


# The order of a forward of which gradients alone are used: it reads all the rest, too.
READ_TOO = "[*{0}{1}, *(n for n, p in tensors().items() if p.requires_grad and n not in {0})]"


def differentiated(writer: Writer, forward: str) -> list[str]:
    """The loss, of gradients that the caller takes of what a forward gives, whose coefficients are "inputs"."""
    own = writer.role
    lines = ["inputs = {", "    name: torch.tensor(values, dtype=tensors()[name].dtype, requires_grad=True)"]
    lines += [f"    for name, values in coefficients[{own}].items()", "}", f"loss = {forward}"]
    lines += [f"taken = torch.autograd.grad(loss, [inputs[name] for name in orders[{own}]], create_graph=True)"]
    products = f"zip([*orders[{own}]][::-1], taken[::-1])"
    lines += [f"taken = sum((inputs[name].detach() * gradient).sum() for name, gradient in {products})"]
    return lines


def saved(writer: Writer) -> list[str]:
    """The state of everything, for nothing."""
    return ["", f"# {SAVES}", *checkpoints.save(writer)]


def alone(writer: Writer, number: int) -> list[str]:
    """What one rank does right before the event of that number."""
    rank = writer.conditions.loner
    done = [*writer.evaluate(Evaluate()), *writer.read(number), "getattr(wrapped, 'state_dict', model.state_dict)()"]
    return ["", f"# {ALONE.format(rank)}", f"if {writer.role} == {rank}:", *(f"    {line}" for line in done)]


def duplicated(writer: Writer, number: int) -> list[str]:
    """A deep copy of the model, and evaluations of each."""
    made = [each for each in writer.conditions.duplicated if each <= number]
    lines = ["", f"# {DUPLICATES}", *["duplicates = []"] * (len(made) == 1), "duplicates += [copy.deepcopy(model)]"]
    for which, then in enumerate(made):
        writer.calls = f"duplicates[{which}].eval()"
        forward = writer.call("dict.fromkeys(tensors(), 0.0)", "list(tensors())")
        lines += ["read.clear()", "with torch.no_grad():", f"    {forward}", *writer.read(then)]
    writer.calls = "wrapped"
    return lines


def swapped(writer: Writer) -> list[str]:
    """An evaluation with other weights."""
    lines = ["", f"# {SWAPS}", "kept = {p: p.detach().clone() for p in tensors().values()}"]
    lines += ["for p in kept:", f"    p.data.fill_({OTHER_WEIGHTS})", *writer.evaluate(Evaluate())]
    lines += writer.same_as_read([np.full(each.shape, OTHER_WEIGHTS) for each in writer.scenario.parameters])
    return [*lines, "for p, before in kept.items():", "    p.data.copy_(before)"]


def dropped(writer: Writer, number: int, event: Event) -> list[str]:
    """A forward whose loss goes nowhere, right before the event of that number."""
    forward = writer.call("dict.fromkeys(tensors(), nan)", "trained")
    local = isinstance(event, Backward) and not event.synchronize and not writer.scenario.stays_in_no_sync(number - 1)
    lines = ["", f"# {DROPS}", "trained = [name for name, p in tensors().items() if p.requires_grad][::-1]"]
    return [*lines, *(["with wrapped.no_sync():", f"    {forward}"] if local else [forward])]


def metric(scenario: Scenario) -> list[str]:
    """A collective of the caller's own."""
    group = ", group=process_group" * bool(scenario.outsiders)
    lines = [f"# {METRIC}", "metric = torch.tensor(rank + 1.0)", f"dist.all_reduce(metric{group})"]
    total = np.asarray(sum(range(1, scenario.world_size + 1)), dtype=np.float32)
    return [*lines, *compare("the sum", '{"the caller": metric}', {"the caller": total})]
