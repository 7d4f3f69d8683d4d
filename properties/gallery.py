"""The gallery: for every law the smallest program on which a known fault breaks it, in the words of the reports.

How it is written:

    python -m lockstep.properties.gallery              all of properties/GALLERY.md anew
    python -m lockstep.properties.gallery P3 test_...  only the parts of these laws
"""

import argparse
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from lockstep.properties.catalogue import every_fault, every_law
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import described
from lockstep.properties.law import Law, sentence
from lockstep.properties.ranks import description
from lockstep.properties.reports.failure import story
from lockstep.properties.searching.search import search
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, SilentlyWrong
from lockstep.worlds.contract import World
from lockstep.worlds.sim.world import SimWorld

PAGE = Path(__file__).with_name("GALLERY.md")
EXAMPLES = {SilentlyWrong: 100, LawBroken: 300}  # silent corruption is looked for first
SEEDS = range(3)  # where making a program smaller ends depends on where it began: the shortest report is shown
HEAD = """# Gallery

What Lockstep shows when a law is broken: for every law one known fault of published code, a few lines over an
implementation that ships (`impls/faults/`), and the smallest program on which the fault shows. Nobody wrote these
programs: they were drawn at random and made smaller for as long as they still failed, three times, of which the
shortest report is shown. `python -m lockstep.properties.gallery` writes this page anew.

How to read a report. Ranks hold parameters a, b, c, ... of a model whose loss is built so that each gradient is a
number of its own for every rank, micro-batch, parameter and element. So a value in the wrong place, or one missing,
doubled or scaled, can be told from the number alone. "Finish" is where the implementation has to have its gradients
final. The report of a run goes on with a script for `torchrun` that shows the same; for a real model with a command,
for a wrapper of a collective with the call.
"""


def main() -> None:
    """Writes properties/GALLERY.md anew, or only the parts of the laws that are named."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.properties.gallery", description=main.__doc__)
    parser.add_argument("laws", nargs="*", metavar="LAW", help="a number such as P3, or the name of a law's test")
    asked = parser.parse_args().laws
    known = {each for law in every_law().values() for each in (law.number, law.name)}
    for name in asked:
        if name not in known:
            parser.error(f"{name}: no law has this number or name; write P3, say")
    write(asked)


def write(asked: list[str]) -> None:
    """Writes the page, law by law; keeps what it has of the laws that are not asked for, if any are."""
    old = PAGE.read_text() if PAGE.is_file() and asked else ""
    kept = {part.partition("\n")[0]: part for part in re.split(r"^(?=## )", old, flags=re.MULTILINE)[1:]}
    parts, world = {heading(law): kept.get(heading(law), "") for law in every_law().values()}, SimWorld()
    try:
        for law in every_law().values():
            if not asked or law.number in asked or law.name in asked:
                print(f"{law.number} {sentence(law)}", flush=True)
                parts[heading(law)] = entry(law, world)
                PAGE.write_text(HEAD + "".join(f"\n{part.strip()}\n" for part in parts.values() if part))
    finally:
        world.close()


def fault_for(law: Law) -> str:
    """The fault that is shown: one that names this law first, if there is one. KeyError where none names it."""
    killed = {name: tuple(fault.killed_by) for name, fault in every_fault().items() if law.name in fault.killed_by}
    if not killed:
        raise KeyError(f"there is no fault that {law.name} kills")
    return min(killed, key=lambda name: (killed[name].index(law.name), not name.startswith("lockstep.impls.faults.")))


def entry(law: Law, world: World) -> str:
    """One law's part of the page. LookupError where its fault is not found."""
    name = fault_for(law)
    trial = Trial(described(name, description.describe(name)), world)
    told: list[list[str]] = []
    for kind, most in EXAMPLES.items():
        searches = [search(law, trial, most, seed_value=seed, only=kind) for seed in SEEDS]
        first = (found.failures[0] for found in searches if found.failures)
        told += [story(law, trial, diagnose(trial, failure, to_the_core=False)) for failure in first]
        if told:
            break
    else:
        raise LookupError(f"{law.name} does not find {name} in {max(EXAMPLES.values())} examples of each seed")
    fault: Any = every_fault()[name]
    module, _, attribute = name.removeprefix("lockstep.").rpartition(":")
    lines = [
        heading(law),
        "",
        inspect.cleandoc(law.says),
        "",
        *textwrap.wrap(
            f"**{attribute}** in `{module.replace('.', '/')}.py`: {fault.known_fault} ({_source(fault.source)}).",
            119,
            break_long_words=False,
            break_on_hyphens=False,
        ),
        "",
        "```text",
        *min(told, key=lambda lines: len(" ".join(lines))),
        "```",
        "",
    ]
    return "\n".join(line.rstrip() for line in lines)


def heading(law: Law) -> str:
    """The title of a law's part."""
    return f"## {law.number}: {sentence(law)}"


def _source(source: str) -> str:
    """Where it was seen, without the codes that `impls.faults` explains; what has no address is a recipe."""
    address = re.search(r"https://[^\s,]+", source)
    return f"seen in <{address[0]}>" if address else "a recipe"


if __name__ == "__main__":
    main()
