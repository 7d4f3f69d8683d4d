"""A counterexample as a script, from the first line to the last."""

import re
import textwrap
from dataclasses import replace
from pathlib import Path

from lockstep.oracle.program import Scenario
from lockstep.properties.companion import companion, partner, turns
from lockstep.properties.conditions import AS_USUAL, Conditions
from lockstep.properties.events import facet_of
from lockstep.properties.expected import known
from lockstep.properties.implementations import Implementation
from lockstep.properties.part import Part
from lockstep.properties.script import stepped
from lockstep.properties.script.head import connection, definitions, head
from lockstep.properties.script.parts import parts, writer_of
from lockstep.properties.script.writer import Writer

TAKE_TURNS = ("for _ in itertools.zip_longest({}):  # they take turns", "    pass")
SHARE_LOSSES = (
    "first, second = {}",
    "for one in first:  # event by event; of a micro-batch each yields its loss, and then goes on",
    "    its = next(second)",
    "    if one is not None:",
    "        (one + its).backward()",
    "        next(second), next(first)",
)
_EXIT = "sys.exit(1 if wrong else 0)"


def write_script(
    implementation: Implementation,
    scenario: Scenario,
    headline: str,
    folder: Path,
    name: str,
    conditions: Conditions = AS_USUAL,
) -> Path:
    """Write the script to a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(script(implementation, scenario, headline, path.name, conditions), encoding="utf-8")
    return path


def script(
    implementation: Implementation,
    scenario: Scenario,
    headline: str,
    file: str,
    conditions: Conditions = AS_USUAL,
) -> str:
    """The script's text. If the oracle does not know the expected values, it prints values without judging them.

    It begins with the first event and ends after the last, whatever part of the program the conditions name.
    """
    expected, caller = known(scenario, implementation.claims), scenario.caller
    if conditions.optimizer:
        expected = None  # the oracle knows only torch's three optimizers
    elif expected is not None and (implementation.plain or implementation.claims.plain_layers):
        expected = replace(expected, states={})  # each rank holds its own part of the state
    if expected is not None and (implementation.claims.steps_in_backward or conditions.withheld):
        expected = replace(expected, gradients={})  # gradients are gone when backward ends, or missing on some ranks
    writer = writer_of(implementation, scenario, expected, conditions)
    own, connect = definitions(implementation, scenario), connection(scenario)
    own += stepped.definitions(writer) if implementation.plain else ""
    evaluates = any(event.evaluates or facet_of(event).reads for event in scenario.program)
    lines = [head(implementation, scenario, headline, file, evaluates)]
    if where := caller.beside or caller.joint:
        its = companion(scenario) if caller.beside else partner(scenario)
        other = writer_of(implementation, its, None, Conditions(Part(looks=len(its.program) + 1)))
        writer.shares_losses = other.shares_losses = bool(caller.joint)
        lines += [connect, *_generator("this", own, writer), *_generator("other", own, other), "", ""]
        pair = "this(), other()" if where == "after" else "other(), this()"
        lines += [line.format(pair) for line in (TAKE_TURNS if caller.beside else SHARE_LOSSES)]
    else:
        lines += [own.rstrip(), connect, *(line for part in parts(writer) for line in part)]
    return "\n".join([*lines, *_end(scenario)])


def _end(scenario: Scenario) -> list[str]:
    """The end of a script: its exit code is 1 if a value is wrong. torchrun ends all ranks once one has failed."""
    group = "process_group" if scenario.outsiders else ""
    return ["", f"dist.barrier({group})  # until every rank has printed", "dist.destroy_process_group()", _EXIT, ""]


def _generator(name: str, own: str, writer: Writer) -> list[str]:
    """A function that yields after the construction and after every turn, or every event and its losses."""
    begin, *rest = parts(writer)
    body = ["global fails"] * writer.raises + [own.strip("\n").replace("\n\n\n", "\n\n"), *begin, "yield"]
    for turn in [(place,) for place in range(len(rest))] if writer.shares_losses else turns(writer.scenario):
        body += [*(line for place in turn for line in rest[place]), "yield"]
    return ["", "", f"def {name}():", textwrap.indent("\n".join(body), "    ")]


def file_name(*parts: str) -> str:
    """A name that is valid on any file system."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(parts)).strip("-")
