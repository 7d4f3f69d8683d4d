"""The definitions at the head of a script: the model of the scenario, and the necessary part of a training loop."""

from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.home import HOME, IS_CLONE
from lockstep.oracle.events import Freeze, Raise
from lockstep.oracle.initial import initial_buffers, initial_parameters
from lockstep.oracle.program import Scenario
from lockstep.properties.implementations import Implementation
from lockstep.properties.naming import parameter_name
from lockstep.properties.ranks.lookup import is_given
from lockstep.properties.script.layers import MODEL
from lockstep.properties.script.offered import FINISH, ZERO_GRAD
from lockstep.properties.script.sharded import definitions_of_pieces

_BEGIN = '''"""{headline}

Written by Lockstep, needs only {needs} and the implementation. Run it with

    torchrun --nproc-per-node={world_size} {file}
"""

import contextlib
import copy
import datetime
import itertools
import sys

import torch
import torch.distributed as dist
from torch import nn

sys.path[:0] = {path}
{imports}

inf, nan = float("inf"), float("nan")
'''

_FAILS = '''

class CallersError(Exception):
    """The caller's own error, which it catches."""


class Fails(torch.autograd.Function):
    """The identity, whose backward raises."""

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        raise CallersError


fails = ""  # where the micro-batch that runs now is to raise


def in_a_hook(p):
    if fails == "hook":
        raise CallersError
'''

_COMPARE = '''

wrong = []  # the names of what is not as it must be


def compare(what, values, expected):
    """``expected``: numbers; or the least and the most that they may be; None where there is to be nothing."""
    for name, value in values.items():
        seen, wanted = None if value is None else value.tolist(), expected.get(name)
        if isinstance(wanted, tuple) and value is not None:
            low, high = (torch.tensor(bound, dtype=torch.float64) for bound in wanted)
            right = low.shape == value.shape and bool(((low <= value.double()) & (value.double() <= high)).all())
            wanted = f"in {wanted[0]} .. {wanted[1]}"
        else:
            right = repr(seen) == repr(wanted)  # tells -0.0 from 0.0
        wrong.extend([] if right else [name])
        mark = "right" if right else f"WRONG, must be {wanted}"
        print(f"rank {rank}: {what} of {name} is {seen}: {mark}\\n", end="", flush=True)  # a line is one write


'''

_CONNECT = """

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank = dist.get_rank()
"""

_OWN = """

def tensors():
    return {names}
"""

_GRADIENTS = """

def gradients():
    return {name: p.grad for name, p in tensors().items()}
"""

# The code by which forward reads a parameter. The key: the model consists of plain layers.
READ = {False: "getattr(module, name)", True: "weight_read(name, getattr(module, name))"}
_GROUP = """
process_group = dist.new_group({members})
if rank not in {members}:  # takes no part
    dist.destroy_process_group()
    sys.exit()
rank = dist.get_rank(process_group)
"""


def head(
    implementation: Implementation,
    scenario: Scenario,
    headline: str,
    file: str,
    evaluates: bool,
) -> str:
    """The imports and the model. ``evaluates``: the values read by forwards without autograd are compared."""
    begin = _BEGIN.format(
        headline=_in_a_docstring(headline),
        world_size=scenario.world_size + scenario.outsiders,
        file=file,
        needs="torch, NumPy" if scenario.caller.seeded else "torch",
        path=_path(implementation.name),
        imports="\n".join(_imports(*implementation.name.rsplit(":", 1))),
    )
    raises = scenario.has(Raise)
    layers = implementation.claims.plain_layers
    model = "\n".join(_model(scenario, raises, evaluates, implementation.takes_one, layers))
    before = [*([_FAILS.rstrip()] if raises else []), *([MODEL.rstrip()] if layers else [])]
    return "\n".join([begin.rstrip(), *before, model, _COMPARE.rstrip()])


def definitions(implementation: Implementation, scenario: Scenario) -> str:
    """The functions that access a model and its wrapper."""
    layers = implementation.claims.plain_layers
    held = "weight({})" if layers else "{}"
    places = enumerate(place(scenario, index) for index in range(len(scenario.parameters)))
    names = ", ".join(f'"{parameter_name(index)}": {held.format(each)}' for index, each in places)
    own = _OWN.replace("{names}", "{" + names + "}")
    if may_hold_pieces(implementation):
        own += definitions_of_pieces(len(scenario.optimizers) > 1, layers)
    elif not implementation.plain:
        own += _GRADIENTS + (ZERO_GRAD if implementation.made else "")
    return own + (FINISH if implementation.made else "")


def connection(scenario: Scenario) -> str:
    """The lines that create the process group and set the rank."""
    return (_CONNECT + _group(scenario)).rstrip()


def _group(scenario: Scenario) -> str:
    """The lines that create the group of training ranks, and end the others; the rank is then the one in the group."""
    return _GROUP.format(members=list(scenario.members)) if scenario.outsiders else ""


def may_hold_pieces(implementation: Implementation) -> bool:
    """True if the script must treat it as an implementation that may shard tensors or makes the optimizer itself."""
    if implementation.plain:
        return False
    return implementation.claims.stage is not None or "make_optimizer" in implementation.offers


def place(scenario: Scenario, parameter: int, of: str = "model") -> str:
    """The attribute that holds a parameter: model.a, or model.units[0].a, which exists even if a unit was replaced."""
    unit = scenario.unit(parameter)
    return ".".join([of, *([] if unit is None else [f"units[{unit}]"]), parameter_name(parameter)])


def _model(scenario: Scenario, raises: bool, evaluates: bool, packed: bool, layers: bool) -> list[str]:
    """The model, possibly made of plain ``layers``: loss = the sum of products of its parameters with coefficients."""
    linear = scenario.probe == "linear"
    formula, gradient = ("<c, p>", "c") if linear else ("<c, p * p> / 2", "c * p")
    product = "p" if linear else "p.square() / 2"
    lines = ["", "", "read = {}  # by the last evaluation"] if evaluates else []
    lines += ["", "", f"def products(module, coefficients, order{', failing' * raises}):"]
    lines += ["    loss = torch.zeros(())", "    for name in order:", f"        p = {READ[layers]}"]
    lines += (
        ["        if not torch.is_grad_enabled():", "            read[name] = p.detach().clone()"] if evaluates else []
    )
    if raises:
        lines += ['        if failing == ("module", name):', "            raise CallersError"]
        lines += ['        if failing == ("backward", name):', "            p = Fails.apply(p)"]
    lines += [f"        loss = loss + (torch.as_tensor(coefficients[name], dtype=p.dtype) * {product}).sum()"]
    lines += ["    return loss"]
    if scenario.units:
        lines += ["", "", "class Unit(nn.Module):"]
        lines += [f"    def forward(self, coefficients, order{', failing' * raises}):"]
        lines += [f"        return products(self, coefficients, order{', failing' * raises})"]
    lines += ["", "", "class Model(nn.Module):"]
    lines += [f'    """loss = the sum of {formula} over the parameters p, so the gradient of p is {gradient}."""', ""]
    lines += ["    def __init__(self, values):", "        super().__init__()"]
    units = [f"self.unit{number}" for number in range(len(scenario.units))]
    lines += [f"        {unit} = Unit()" for unit in units]
    lines += [f"        self.units = ({', '.join(units)},)"] * bool(units)
    lines += [
        f"        {line}" for index in range(len(scenario.parameters)) for line in _parameter(scenario, index, layers)
    ]
    if scenario.registered:
        homes = [place(scenario, index, "self").rpartition(".") for index in scenario.registered]
        told = ", ".join(f'({home}, "{name}")' for home, _, name in homes)
        lines += [f"        for home, name in ({told},):  # registers them in this order"]
        lines += ["            p = getattr(home, name)", "            delattr(home, name)"]
        lines += ["            setattr(home, name, p)"]
    for number in range(len(scenario.buffers)):
        lines += [f'        self.register_buffer("buffer{number}", torch.tensor(values["buffer{number}"]))']
    for index in scenario.outside:
        lines += ["", "    @property", f"    def {parameter_name(index)}(self):"]
        lines += [f"        return {place(scenario, index, 'self')}  # read outside of its module"]
    return [*lines, "", *_forward(scenario, raises, packed)]


def _parameter(scenario: Scenario, index: int, layers: bool) -> list[str]:
    parameter, mine = scenario.parameters[index], place(scenario, index, "self")
    held = f'in_a_layer("{parameter_name(index)}", {{}}, {bool(index % 2)})' if layers else "{}"
    if parameter.tied is not None:
        other = place(scenario, parameter.tied, "self")
        return [f"{mine} = {held.format(f'weight({other})' if layers else other)}"]
    value = f'torch.tensor(values["{parameter_name(index)}"], dtype=torch.{parameter.dtype})'
    if parameter.count == 0:
        value += f".reshape({parameter.shape})"
    if parameter.layout == "transposed":
        backwards = tuple(range(len(parameter.shape)))[::-1]
        value += f".permute({backwards}).contiguous().permute({backwards})"
    elif parameter.layout == "channels last":
        value += ".contiguous(memory_format=torch.channels_last)"
    made = f"nn.Parameter({value}{'' if parameter.trainable else ', requires_grad=False'})"
    return [f"{mine} = {held.format(made)}"]


def _forward(scenario: Scenario, raises: bool, packed: bool) -> list[str]:
    takes = "".join(f", {name}={default}" for name, default in beside(scenario).items())
    lines = [f"    def forward(self, coefficients, order{'=None' * packed}{takes}):"]
    if packed:
        lines += ["        if order is None:  # what wraps it takes one argument, so all come in one"]
        lines += [f"            {', '.join(['coefficients', 'order', *beside(scenario)])} = coefficients"]
    if raises:
        lines += ['        if fails == "forward":', "            raise CallersError"]
    for number, buffer in enumerate(scenario.buffers):
        anew = f"= self.buffer{number} + increment if increment else self.buffer{number}"
        changed = anew if buffer.reassigned else "+= increment"
        lines += [f"        self.buffer{number} {changed}"]
    failing = ", failing" if raises else ""
    if raises:
        lines += ['        middle = {"module": (len(order) - 1) // 2, "backward": len(order) // 2}']
        lines += ["        failing = (fails, order[middle[fails]]) if fails in middle else None"]
    lines += ["        # Backward goes through the products latest first, so they are made in reverse."]
    read = " + sum(getattr(self, name).sum() for name in frozen)" if "frozen" in beside(scenario) else ""
    if not scenario.units:
        return [*lines, f"        return products(self, coefficients, order[::-1]{failing}){read}"]
    units = {
        parameter_name(index): f"unit{scenario.reader(index)}"
        for index in range(len(scenario.parameters))
        if scenario.reader(index) is not None
    }
    lines += [f"        units = {units}", "        loss = torch.zeros(())"]
    lines += ["        for unit, run in itertools.groupby(order[::-1], units.get):"]
    lines += ["            if unit is None:"]
    lines += [f"                loss = loss + products(self, coefficients, run{failing})"]
    lines += ["            else:"]
    return [
        *lines,
        f"                loss = loss + getattr(self, unit)(coefficients, list(run){failing})",
        f"        return loss{read}",
    ]


def beside(scenario: Scenario) -> dict[str, str]:
    """The arguments of the model's forward besides coefficients and order, with their defaults."""
    happens = {type(event) for event in scenario.program}
    freezes = Freeze in happens or not all(parameter.trainable for parameter in scenario.parameters)
    all_there_are = {"frozen": ("()", freezes), "increment": ("0", scenario.buffers), "fails": ('""', Raise in happens)}
    return {name: default for name, (default, needed) in all_there_are.items() if needed}


def _path(implementation: str) -> list[str]:
    """The folders that must be on the import path for the implementation."""
    of_a_clone = [HOME] if IS_CLONE and implementation.startswith("lockstep.") else []
    return list(dict.fromkeys([str(Path.cwd()), *of_a_clone]))


def _imports(place: str, attribute: str) -> list[str]:
    """The lines that import the implementation as this process did (`properties.ranks.lookup.find`)."""
    if is_given(f"{place}:{attribute}"):
        words = f"put {attribute} here in place of this line; it was defined in {place}, and no script can import it"
        return [f"raise SystemExit({words!r})"]
    attribute = attribute.partition(".")[0]  # a class may be nested in another
    if not place.endswith(".py"):
        if all(part.isidentifier() and not iskeyword(part) for part in place.split(".")):
            return [f"from {place} import {attribute}"]
        return ["import importlib", "", f"{attribute} = importlib.import_module({place!r}).{attribute}"]
    # By its path, because the file may have the name of another module, or a name that no module can have.
    path = Path(place).resolve()
    lines = ["import importlib.util", "", f"sys.path.append({str(path.parent)!r})"]
    lines += [f"spec = importlib.util.spec_from_file_location({f'{path.stem} in {path.parent}'!r}, {str(path)!r})"]
    lines += ["sys.modules[spec.name] = file = importlib.util.module_from_spec(spec)"]
    return [*lines, "spec.loader.exec_module(file)", f"{attribute} = file.{attribute}"]


def _in_a_docstring(text: str) -> str:
    """The text escaped for a docstring."""
    text = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def initial_values(scenario: Scenario, rank: int) -> dict[str, Any]:
    """The initial values of a rank's model by name, as numbers."""
    numbers = {
        parameter_name(index): values.tolist()
        for index, (values, parameter) in enumerate(
            zip(initial_parameters(scenario, rank), scenario.parameters, strict=True)
        )
        if parameter.tied is None
    }
    buffers = enumerate(initial_buffers(scenario, rank))
    return numbers | {f"buffer{number}": np.asarray(values).tolist() for number, values in buffers}
