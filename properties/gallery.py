"""The gallery: for every law the smallest program on which a known fault breaks it, as a report shows it.

python -m lockstep.properties.gallery              searches for all counterexamples again, for the pages docs/laws/
python -m lockstep.properties.gallery P3 test_...  searches for those of these laws
"""

import argparse
import re
import textwrap
from typing import Any

from lockstep.properties.catalogue import every_fault, every_law
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import described
from lockstep.properties.law import Law, sentence
from lockstep.properties.pages import laws
from lockstep.properties.ranks import description
from lockstep.properties.reports.failure import story
from lockstep.properties.searching.search import search
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, SilentlyWrong
from lockstep.worlds.contract import World
from lockstep.worlds.sim.world import SimWorld

EXAMPLES = {SilentlyWrong: 100, LawBroken: 300}  # silent corruption is searched for first
SEEDS = range(3)  # the result of shrinking depends on its start, so the shortest report of several is shown


def main() -> None:
    """Search for counterexamples, of all laws or of those that are named, and write them into the laws' pages."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.properties.gallery", description=main.__doc__)
    parser.add_argument("laws", nargs="*", metavar="LAW", help="a number such as P3, or the name of a law's test")
    asked = parser.parse_args().laws
    known = {each for law in every_law().values() for each in (law.number, law.name)}
    for name in asked:
        if name not in known:
            parser.error(f"{name}: no law has this number or name; write P3, say")
    write(asked)


def write(asked: list[str]) -> None:
    """Write the counterexamples law by law. If laws are named, keep those of the others."""
    found, world = laws.counterexamples(), SimWorld()
    try:
        for law in every_law().values():
            if not asked or law.number in asked or law.name in asked:
                print(f"{law.number} {sentence(law)}", flush=True)
                found[laws.heading(law.name)] = entry(law, world)
                laws.path_of(law.number).write_text(laws.page(law.number, found))
    finally:
        world.close()


def fault_for(law: Law) -> str:
    """The fault to show for a law: preferably one that names this law first. Raises KeyError if no fault names it."""
    killed = {name: tuple(fault.killed_by) for name, fault in every_fault().items() if law.name in fault.killed_by}
    if not killed:
        raise KeyError(f"there is no fault that {law.name} kills")
    return min(killed, key=lambda name: (killed[name].index(law.name), not name.startswith("lockstep.impls.faults.")))


def entry(law: Law, world: World) -> str:
    """The counterexample of a law, as its page shows it. Raises LookupError if its fault is not found."""
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
    ]
    return "\n".join(line.rstrip() for line in lines)


def _source(source: str) -> str:
    """The address where the fault was seen, without the codes of `impls.faults`; "a recipe" without an address."""
    address = re.search(r"https://[^\s,]+", source)
    return f"seen in <{address[0]}>" if address else "a recipe"


if __name__ == "__main__":
    main()
