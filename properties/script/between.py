"""What the caller does between the events, where a law has asked for it (`properties.conditions.Conditions`)."""

import numpy as np

from lockstep.oracle.program import Scenario
from lockstep.properties.conditions import Conditions
from lockstep.properties.naming import (
    GENERATORS,
    METRIC,
    SAVES,
    difference,
    parameter_name,
)
from lockstep.properties.script import checkpoints
from lockstep.properties.script.head import place
from lockstep.properties.script.seen import by_name, compare
from lockstep.properties.script.writer import Writer

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


# In what one rank's model differs (`properties.naming.DIFFERENCES`); "{}": in which parameter.
DIFFERS = {
    "number": ['model.register_parameter("more", nn.Parameter(torch.zeros(())))'],
    "size": [
        "other = {}.new_zeros({}.numel() + 1)",
        "{} = nn.Parameter(other, requires_grad={}.requires_grad)",
    ],
    "shape": ["{} = nn.Parameter({}.detach()[None], requires_grad={}.requires_grad)"],
    "name": [
        "name, p = '{}'.split('.')[-1], {}",
        "del {}",
        'model.register_parameter("other", p)',
        "vars(model)[name] = p  # no parameter's name any more",
    ],
    "dtype": [
        "other = {}.detach().to(torch.float64 if {}.dtype is torch.float32 else torch.float32)",
        "{} = nn.Parameter(other, requires_grad={}.requires_grad)",
    ],
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
    """One rank's model, made another one, if it is to be."""
    way, where, rank = conditions.differs, conditions.differs_in, conditions.loner
    if not way:
        return []
    lines = [f"    {line.replace('{}', place(scenario, where))}" for line in DIFFERS[way]]
    return [f"# {difference(way, where, rank)}", f"if rank == {rank}:", *lines]


# What a hook finds right before a module's forward.
FINDS = """

def finds(module, name, whole):
    if torch.compiler.is_compiling():
        return
    found = getattr(module, name)
    local = getattr(found, "_local_tensor", found)
    with contextlib.suppress(RuntimeError, TypeError):  # of functional transforms
        there = min(local.numel(), local.untyped_storage().nbytes() // local.element_size())
        compare("the number of elements that a hook finds", {name: torch.tensor(there)}, {name: whole})


""".splitlines()
# What units are given a hook on the model multiplies by -1/4, and theirs multiply that by 2, what they give by 2, and
# what comes back to them by -1.
MULTIPLIES = """

def times(factor, inputs, named, names=None):
    coefficients = dict(named.get("coefficients") or inputs[0])
    for name in names or coefficients:
        coefficients[name] = (torch.tensor(coefficients[name], dtype=torch.float64) * factor).tolist()
    if "coefficients" in named:
        return inputs, {**named, "coefficients": coefficients}
    return (coefficients, *inputs[1:]), named


model.register_forward_pre_hook(lambda _, inputs, named: times(-0.25, inputs, named, NAMES), with_kwargs=True)
for unit in model.units:
    unit.register_forward_pre_hook(lambda _, inputs, named: times(2, inputs, named), with_kwargs=True)
    unit.register_forward_hook(lambda _, inputs, loss: loss * 2)
    unit.register_full_backward_pre_hook(lambda _, gradients: tuple(-each for each in gradients))"""


# What the caller's own hooks find of gradients: the first of what each finds, where it is to run once.
KEEPS = """
kept, once = {}, False


def keep(name, p):
    if not once or name not in kept:
        kept[name] = None if p.grad is None else p.grad.clone()


for name, p in tensors().items():
    if p.requires_grad:
        p.register_post_accumulate_grad_hook(lambda p, name=name: keep(name, p))""".splitlines()


def hooked(conditions: Conditions, scenario: Scenario) -> list[str]:
    """Hooks of the caller's own, if there are any."""
    lines = []
    if conditions.hooked:
        lines = ["for p in set(tensors().values()):  # the caller's own hooks", "    if p.requires_grad:"]
        lines += [f"        p.register_hook(lambda gradient: gradient * {2.0**conditions.hooked})"]
    if conditions.module_hooked:
        places = [place(scenario, index).rpartition(".") for index in range(len(scenario.parameters))]
        homes = zip(places, scenario.parameters, strict=True)
        held = [f"({home}, {name!r}, {each.count})" for (home, _, name), each in homes]
        lines = [*FINDS, f"for one in [{', '.join(held)}]:"]
        lines += ["    one[0].register_forward_pre_hook(lambda *_, one=one: finds(*one))  # the caller's own hooks"]
        lines += [f"model.register_forward_hook(lambda _, inputs, loss: loss * {2.0**conditions.module_hooked})"]
        if scenario.units:
            read = [parameter_name(i) for i in range(len(scenario.parameters)) if scenario.reader(i) is not None]
            lines += MULTIPLIES.replace("NAMES", str(read)).splitlines()
    if conditions.keeps_gradients:
        lines += KEEPS
    return lines


def kept(writer: Writer, number: int) -> list[str]:
    """What hooks of the caller's have found before a Finish of that number."""
    found = (
        '{name: getattr(kept.get(name), "full_tensor", lambda: kept.get(name))() for name in sorted({*kept, *used})}'
    )
    if writer.expected is None or number < writer.looks:
        return []
    return compare("what a hook finds", found, by_name(writer.expected.gradients[number]))


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


def metric(scenario: Scenario) -> list[str]:
    """A collective of the caller's own."""
    group = ", group=process_group" * bool(scenario.outsiders)
    lines = [f"# {METRIC}", "metric = torch.tensor(rank + 1.0)", f"dist.all_reduce(metric{group})"]
    total = np.asarray(sum(range(1, scenario.world_size + 1)), dtype=np.float32)
    return [*lines, *compare("the sum", '{"the caller": metric}', {"the caller": total})]
