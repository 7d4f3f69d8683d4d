"""The caller's habits (`oracle.caller`) in a script: around the construction, and their effects later."""

from lockstep.oracle.program import Scenario
from lockstep.properties.naming import GENERATORS, difference, parameter_name
from lockstep.properties.script.head import place
from lockstep.properties.script.seen import by_name, compare
from lockstep.properties.script.writer import Writer

# Seeding a rank's random numbers, and reading the next ones.
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


# The lines that make one rank's model differ (`oracle.caller.WAYS`). "{}" stands for the parameter.
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


def differing(scenario: Scenario) -> list[str]:
    """The lines that make one rank's model differ, if it must."""
    if (differs := scenario.differs) is None:
        return []
    lines = [f"    {line.replace('{}', place(scenario, differs.parameter))}" for line in DIFFERS[differs.way]]
    return [f"# {difference(differs)}", f"if rank == {differs.rank}:", *lines]


# A hook that checks the parameters right before a module's forward.
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
# A hook on the model multiplies the inputs of units by -1/4. Hooks on each unit multiply its inputs by 2, its output by
# 2, and its incoming gradient by -1.
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


# The gradients that the caller's hooks see: the first one if a hook must run once, else the last.
KEEPS = """
kept, once = {}, False


def keep(name, p):
    if not once or name not in kept:
        kept[name] = None if p.grad is None else p.grad.clone()


for name, p in tensors().items():
    if p.requires_grad:
        p.register_post_accumulate_grad_hook(lambda p, name=name: keep(name, p))""".splitlines()


def hooked(scenario: Scenario) -> list[str]:
    """The lines that set the caller's hooks, if there are any."""
    lines, caller = [], scenario.caller
    if caller.hooked:
        lines = ["for p in set(tensors().values()):  # the caller's own hooks", "    if p.requires_grad:"]
        lines += [f"        p.register_hook(lambda gradient: gradient * {2.0**caller.hooked})"]
    if caller.module_hooked:
        places = [place(scenario, index).rpartition(".") for index in range(len(scenario.parameters))]
        homes = zip(places, scenario.parameters, strict=True)
        held = [f"({home}, {name!r}, {each.count})" for (home, _, name), each in homes]
        lines = [*FINDS, f"for one in [{', '.join(held)}]:"]
        lines += ["    one[0].register_forward_pre_hook(lambda *_, one=one: finds(*one))  # the caller's own hooks"]
        lines += [f"model.register_forward_hook(lambda _, inputs, loss: loss * {2.0**caller.module_hooked})"]
        if scenario.units:
            read = [parameter_name(i) for i in range(len(scenario.parameters)) if scenario.reader(i) is not None]
            lines += MULTIPLIES.replace("NAMES", str(read)).splitlines()
    return lines


def kept(writer: Writer, number: int) -> list[str]:
    """The comparison of the gradients that the caller's hooks saw before the Finish of that number."""
    found = (
        '{name: getattr(kept.get(name), "full_tensor", lambda: kept.get(name))() for name in sorted({*kept, *used})}'
    )
    if writer.expected is None or number < writer.looks:
        return []
    return compare("what a hook finds", found, by_name(writer.expected.gradients[number]))
