"""Writes a counterexample as a script of its own: plain torch and the implementation, nothing of Lockstep."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from oracle.fingerprint import coefficients, initial_parameters
from oracle.interpreter import Values, interpret
from oracle.program import Backward, Finish, Scenario, Step, ZeroGrad
from properties.adapter import CAP_NAMES
from properties.implementations import Implementation
from properties.naming import event_words, names, parameter_name

_HEAD = '''"""{headline}

Written by Lockstep, needs only torch and the implementation. Run it with

    torchrun --nproc-per-node={world_size} {file}
"""

import datetime
import sys

import torch
import torch.distributed as dist
from torch import nn

sys.path[:0] = {path}
{imports}


class Model(nn.Module):
    """loss = the sum of {formula} over the parameters p, so the gradient of p is {gradient}."""

    def __init__(self, values):
        super().__init__()
        for name, (value, dtype, trained) in values.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(value, dtype=dtype), requires_grad=trained))

    def forward(self, coefficients, order):
        # Backward goes through the products latest first, so they are made in reverse.
        loss = torch.zeros(())
        for name in reversed(order):
            p = getattr(self, name)
            loss = loss + (torch.tensor(coefficients[name], dtype=p.dtype) * {product}).sum()
        return loss


def compare(what, values, expected):
    for name, value in values.items():
        seen = None if value is None else value.tolist()
        mark = "right" if seen == expected[name] else f"WRONG, must be {{expected[name]}}"
        print(f"rank {{rank}}: {{what}} of {{name}} is {{seen}}: {{mark}}", flush=True)


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank = dist.get_rank()

# Every rank begins with values of its own; wrapping makes them rank 0's.
model = Model({initial}[rank])
wrapped = {construct}
'''


def write_script(implementation: Implementation, scenario: Scenario, headline: str, folder: Path, name: str) -> Path:
    """Writes the script into a folder and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(script(implementation, scenario, headline, path.name))
    return path


def script(implementation: Implementation, scenario: Scenario, headline: str, file: str) -> str:
    """The script's text."""
    module, _, attribute = implementation.name.rpartition(":")
    where = Path(module) if module.endswith(".py") else None
    expected = interpret(scenario, implementation.claims.averaging, implementation.claims.unused or "untouched")
    cap = ""
    if scenario.bucket_cap is not None and implementation.cap is not None:
        cap = f", {implementation.cap}={scenario.bucket_cap * CAP_NAMES[implementation.cap]!r}"
    linear = scenario.probe == "linear"
    lines = [
        _HEAD.format(
            headline=headline,
            world_size=scenario.world_size,
            file=file,
            path=repr(_import_path(where)),
            imports=f"from {where.stem if where else module} import {attribute}",
            formula="<c, p>" if linear else "<c, p * p> / 2",
            gradient="c" if linear else "c * p",
            product="p" if linear else "p.square() / 2",
            initial=_by_rank([_initial(scenario, rank) for rank in range(scenario.world_size)]),
            construct=f"{attribute}(model{cap})",
        )
    ]
    batch = 0
    for place, event in enumerate(scenario.program):
        lines.append("\n# " + "\n# ".join(event_words(scenario, place)))
        match event:
            case Backward():
                ranks = range(scenario.world_size)
                orders = [names(scenario.order(batch, rank)).split(", ") for rank in ranks]
                numbers = [_named(coefficients(scenario, rank)[batch]) for rank in ranks]
                inside = "    " if not event.synchronize else ""
                lines.append(f"orders = {_by_rank(orders)}\ncoefficients = {_by_rank(numbers)}")
                lines += ["with wrapped.no_sync():"] if inside else []
                lines.append(f"{inside}wrapped(coefficients[rank], orders[rank]).backward()")
                batch += 1
            case Finish():
                lines += [f"wrapped.{implementation.finish}()"] if implementation.finish else []
                values = _named(expected.gradients[place])
                lines.append(
                    'compare("the gradient", {n: p.grad for n, p in model.named_parameters()}, ' + f"{values})"
                )
            case Step():
                lines.append(f"torch.optim.SGD(model.parameters(), lr={scenario.learning_rate}).step()")
                values = _named(expected.parameters[place])
                lines.append(f'compare("the value", dict(model.named_parameters()), {values})')
            case ZeroGrad():
                lines.append(f"torch.optim.SGD(model.parameters(), lr=1.0).zero_grad(set_to_none={event.set_to_none})")
    lines.append("\ndist.destroy_process_group()\n")
    return "\n".join(lines)


def _import_path(file: Path | None) -> list[str]:
    """Where the script finds the implementation: where this process did."""
    folders = [file.resolve().parent] if file else [Path.cwd(), Path(__file__).resolve().parent.parent]
    return list(dict.fromkeys(map(str, folders)))


def _initial(scenario: Scenario, rank: int) -> str:
    values = [
        f"{parameter_name(index)!r}: ({numbers.tolist()!r}, torch.{parameter.dtype}, {parameter.trainable})"
        for index, (numbers, parameter) in enumerate(
            zip(initial_parameters(scenario, rank), scenario.parameters, strict=True)
        )
    ]
    return "{" + ", ".join(values) + "}"


def _named(values: Values | list[Any]) -> dict[str, Any]:
    return {
        parameter_name(index): None if value is None else np.asarray(value, dtype=np.float64).tolist()
        for index, value in enumerate(values)
    }


def _by_rank(each: list[Any]) -> str:
    return "[\n" + "".join(f"    {item},  # rank {rank}\n" for rank, item in enumerate(each)) + "]"


def file_name(*parts: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(parts)).strip("-")
