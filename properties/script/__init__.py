"""Writes a counterexample as a script of its own: plain torch and the implementation, nothing of Lockstep.

head         the model and whatever else the script defines before it begins
sharded      what it defines beside for an implementation that may hold things in pieces
offered      and where a function makes the wrapper, whose methods are known only then
events       the program, event by event
checkpoints  what is saved and loaded
seen         what must be seen after an event
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oracle.program import Scenario
from properties.companion import companion, partner, turns
from properties.expected import known
from properties.implementations import Implementation
from properties.script.events import Writer
from properties.script.head import connection, definitions, head

TAKE_TURNS = ("for _ in itertools.zip_longest({}):  # they take turns", "    pass")
SHARE_LOSSES = (
    "first, second = {}",
    "for one in first:  # event by event; of a micro-batch each yields its loss, and then goes on",
    "    its = next(second)",
    "    if one is not None:",
    "        (one + its).backward()",
    "        next(second), next(first)",
)


def write_script(
    implementation: Implementation, scenario: Scenario, headline: str, folder: Path, name: str, **how: Any
) -> Path:
    """Writes the script into a folder and returns its path. ``how``: see `script`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(script(implementation, scenario, headline, path.name, **how), encoding="utf-8")
    return path


def script(
    implementation: Implementation,
    scenario: Scenario,
    headline: str,
    file: str,
    looks: int = 0,
    overflows: str = "inf",
    around: Sequence[int] = (),
    moved: Sequence[int] = (),
    beside: str = "",
    joint: str = "",
) -> str:
    """The script's text. Where the oracle does not know what must come out, it shows values and judges none.

    ``looks``: the event from which on it looks at values; the others as in `properties.ranks.program.run_program`.
    """
    expected = known(scenario, implementation.claims)
    if expected is not None and overflows != "inf":  # what becomes of such gradients has not been told
        told = {at: each for at, each in expected.gradients.items() if not scenario.overflowed(at)}
        expected = replace(expected, gradients=told)
    writer = Writer(implementation, scenario, expected, looks, overflows, around, moved)
    own, connect = definitions(implementation, scenario), connection(scenario)
    lines = [head(implementation, scenario, headline, file)]
    if where := beside or joint:
        its = companion(scenario) if beside else partner(scenario)
        other = Writer(implementation, its, None, len(its.program) + 1, overflows, (), ())
        writer.shares_losses = other.shares_losses = bool(joint)
        lines += [connect, *_generator("this", own, writer), *_generator("other", own, other), "", ""]
        pair = "this(), other()" if where == "after" else "other(), this()"
        lines += [line.format(pair) for line in (TAKE_TURNS if beside else SHARE_LOSSES)]
    else:
        lines += [own.rstrip(), connect, *(line for part in writer.parts() for line in part)]
    return "\n".join([*lines, "", "dist.destroy_process_group()", ""])


def _generator(name: str, own: str, writer: Writer) -> list[str]:
    """A function that yields after the construction and after every turn, or every event and its losses."""
    begin, *parts = writer.parts()
    body = ["global fails"] * writer.raises + [own.strip("\n").replace("\n\n\n", "\n\n"), *begin, "yield"]
    for turn in [(place,) for place in range(len(parts))] if writer.shares_losses else turns(writer.scenario):
        body += [*(line for place in turn for line in parts[place]), "yield"]
    return ["", "", f"def {name}():", textwrap.indent("\n".join(body), "    ")]


def file_name(*parts: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(parts)).strip("-")
