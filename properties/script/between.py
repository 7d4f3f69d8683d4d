"""What the caller does between the events, where a law has asked for it (`properties.conditions.Conditions`)."""

from typing import TYPE_CHECKING

import numpy as np

from oracle.program import Backward, Evaluate, Event, Scenario
from properties.conditions import Conditions
from properties.naming import (
    ALONE,
    COPIES,
    DIFFERENCES,
    DROPS,
    DUPLICATES,
    GENERATORS,
    METRIC,
    SAVES,
    SWAPS,
    parameter_name,
)
from properties.script import checkpoints
from properties.script.head import place
from properties.script.seen import by_name, compare
from properties.seen import OTHER_WEIGHTS

if TYPE_CHECKING:
    from properties.script.events import Writer

MOVED = ["", "model._apply(torch.clone)  # to new memory, as .to(device) does"]
# Copies in the place of gradients.
COPIED = [f"# {COPIES}", "for p in set(tensors().values()):", "    if p.grad is not None:"]
COPIED += ["        p.grad = p.grad.clone()"]

# Random numbers of a rank's own, and which come next of them.
SEEDED = """
# Each rank has random numbers of its own.
import random

import numpy

torch.manual_seed(rank + 1)
numpy.random.seed(rank + 1)
random.seed(rank + 1)


def upcoming():
    numpys, pythons = numpy.random.get_state(), random.getstate()
    with torch.random.fork_rng([]):
        numbers = torch.rand(()).item(), numpy.random.rand(), random.random()
    numpy.random.set_state(numpys)
    random.setstate(pythons)
    return {name: torch.tensor(number, dtype=torch.float64) for name, number in zip(GENERATORS, numbers)}


before = {name: number.item() for name, number in upcoming().items()}
""".replace("GENERATORS", str(GENERATORS)).splitlines()
GO_ON = 'compare("the next random number", upcoming(), before)'


# In what the last rank's model differs (`properties.naming.DIFFERENCES`); "{}": its first parameter.
DIFFERS = {
    "number": ['model.register_parameter("more", nn.Parameter(torch.zeros(())))'],
    "shape": ["{} = nn.Parameter({}.new_zeros({}.numel() + 1))"],
    "dtype": ["{} = nn.Parameter({}.detach().to({}.dtype is torch.float32 and torch.float64 or torch.float32))"],
    "trained": ["{}.requires_grad_(False)"],
    "order": [
        "for name, p in [*model.named_parameters(recurse=False)][::-1]:",
        "    delattr(model, name)",
        "    model.register_parameter(name, p)",
    ],
}
WRAPPED = (
    'print(f"rank {rank}: no error where models are wrapped: WRONG, must be one on every rank\\n", end="", flush=True)'
)


def differing(conditions: Conditions, scenario: Scenario) -> list[str]:
    """The last rank's model, made another one, if it is to be."""
    if not conditions.differs:
        return []
    words = DIFFERENCES[conditions.differs].format(parameter_name(0))
    lines = [line.replace("{}", place(scenario, 0)) for line in DIFFERS[conditions.differs]]
    return [f"if rank == {scenario.world_size - 1}:  # it {words}", *(f"    {line}" for line in lines)]


# What a hook finds right before a module's forward.
FINDS = """

def finds(module, name, whole):
    found = getattr(module, name)
    local = getattr(found, "_local_tensor", found)
    there = min(local.numel(), local.untyped_storage().nbytes() // local.element_size())
    compare("the number of elements that a hook finds", {name: torch.tensor(there)}, {name: whole})

""".splitlines()


def hooked(conditions: Conditions, scenario: Scenario) -> list[str]:
    """Hooks of the caller's own, if there are any."""
    lines = []
    if conditions.hooked:
        lines = ["for p in set(tensors().values()):  # the caller's own hooks", "    if p.requires_grad:"]
        lines += [f"        p.register_hook(lambda gradient: gradient * {2.0**conditions.hooked})"]
    if conditions.module_hooked:
        held = [(place(scenario, index), each) for index, each in enumerate(scenario.parameters)]
        homes = [(*name.rsplit(".", 1), each.count) for name, each in held]
        lines = [*FINDS, f"for one in [{', '.join(f'({home}, {name!r}, {size})' for home, name, size in homes)}]:"]
        lines += ["    one[0].register_forward_pre_hook(lambda *_, one=one: finds(*one))  # the caller's own hooks"]
        lines += [f"model.register_forward_hook(lambda _, inputs, loss: loss * {2.0**conditions.module_hooked})"]
    if conditions.keeps_gradients:
        lines += ["kept = {}", "for name, p in tensors().items():  # the caller's own hooks", "    if p.requires_grad:"]
        keep = "lambda p, name=name: kept.update({name: p.grad.clone()})"
        lines += [f"        p.register_post_accumulate_grad_hook({keep})"]
    return lines


def kept(writer: "Writer", number: int) -> list[str]:
    """What hooks of the caller's have found before a Finish of that number."""
    found = '{name: getattr(each, "full_tensor", lambda: each)() for name, each in kept.items()}'
    if writer.expected is None or number < writer.looks:
        return []
    return compare("what a hook finds", found, by_name(writer.expected.gradients[number]))


def halved(writer: "Writer", loss: str) -> tuple[list[str], str]:
    """What comes before a forward of half the loss, and all of the loss."""
    p = "tensors()[name]"
    product = p if writer.scenario.probe == "linear" else f"{p}.square() / 2"
    half = f"(torch.tensor(coefficients[{writer.role}][name], dtype={p}.dtype) * {product}).sum()"
    own = f"sum({half} for name in orders[{writer.role}][::-1])"
    return (["own = " + own], f"({loss} + own)") if writer.conditions.half_first else ([], f"({loss} + {own})")


def saved(writer: "Writer") -> list[str]:
    """The state of everything, for nothing."""
    return ["", f"# {SAVES}", *checkpoints.save(writer)]


def alone(writer: "Writer", number: int) -> list[str]:
    """What one rank does right before the event of that number."""
    rank = writer.conditions.loner
    done = [*writer.evaluate(Evaluate()), *writer.read(number), "getattr(wrapped, 'state_dict', model.state_dict)()"]
    return ["", f"# {ALONE.format(rank)}", f"if {writer.role} == {rank}:", *(f"    {line}" for line in done)]


def duplicated(writer: "Writer", number: int) -> list[str]:
    """A deep copy of the model, and evaluations of each."""
    made = [each for each in writer.conditions.duplicated if each <= number]
    lines = ["", f"# {DUPLICATES}", *["duplicates = []"] * (len(made) == 1), "duplicates += [copy.deepcopy(model)]"]
    for which, then in enumerate(made):
        writer.calls = f"duplicates[{which}].eval()"
        forward = writer.call("dict.fromkeys(tensors(), 0.0)", "list(tensors())")
        lines += ["read.clear()", "with torch.no_grad():", f"    {forward}", *writer.read(then)]
    writer.calls = "wrapped"
    return lines


def swapped(writer: "Writer") -> list[str]:
    """An evaluation with other weights."""
    lines = ["", f"# {SWAPS}", "kept = {p: p.detach().clone() for p in tensors().values()}"]
    lines += ["for p in kept:", f"    p.data.fill_({OTHER_WEIGHTS})", *writer.evaluate(Evaluate())]
    lines += writer.same_as_read([np.full(each.shape, OTHER_WEIGHTS) for each in writer.scenario.parameters])
    return [*lines, "for p, before in kept.items():", "    p.data.copy_(before)"]


def dropped(writer: "Writer", number: int, event: Event) -> list[str]:
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
