"""Published defects that the laws find. Each has a shipped fault, and the laws that find it.

`python -m lockstep.properties.reported` writes docs/published-defects.md.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.home import HOME
from lockstep.impls.faults import TOPICS
from lockstep.properties.catalogue import every_fault, every_law
from lockstep.properties.law import sentence

PAGE = Path(HOME) / "docs" / "published-defects.md"
HEAD = """# Published defects that the laws find

Each line is a defect that somebody reported of code in use. Lockstep has a class with this defect: a few lines over an
implementation that ships. A test checks that the laws in the last column find it within 300 drawn programs. To try one,
give the name of its class: `lockstep check lockstep.impls.faults.mean:DividesTwice`.

There are {count} reports. `d`: the cause is partly inferred. `s`: the defect was read in the published source.
`python -m lockstep.properties.reported` writes this page. Defects of kernels are described in
`impls/faults/kernels_*.py`.
"""


def main() -> None:
    """Writes docs/published-defects.md anew."""
    argparse.ArgumentParser(prog="python -m lockstep.properties.reported", description=main.__doc__).parse_args()
    PAGE.write_text(page())


def page() -> str:
    """The whole page, by topic."""
    reports = sorted(_reports(), key=lambda report: report[:2])
    parts = [HEAD.format(count=len({address for _, address, *_ in reports}))]
    for letter, topic in TOPICS.items():
        lines = [_line(*report[1:]) for report in reports if report[0].startswith(letter)]
        if lines:
            parts.append(
                f"\n## {topic}\n\n| reported | what is wrong | class | found by |\n| --- | --- | --- | --- |\n"
            )
            parts += lines
    return "".join(parts)


def _reports() -> Iterator[tuple[str, str, str, str, Any]]:
    """Each report: its code, its address, how well it is known, the fault's name, and the fault."""
    for name, fault in every_fault().items():
        for code, known, address in re.findall(r"([A-Z]\d\d) ([VDS]) (https://[^\s,]+)", fault.source):
            yield code, address, known, name, fault


def _line(address: str, known: str, name: str, fault: Any) -> str:
    where = re.sub(r"^https://github.com/([^/]+/[^/]+)(?:/\w+/(\d+))?", _short, address)
    mark = "" if known == "V" else f" {known.lower()}"
    first, *others = (every_law()[law] for law in fault.killed_by)
    more = "".join(f", {number}" for number in dict.fromkeys(law.number for law in others) if number != first.number)
    law = f"{first.number} {sentence(first)}{more}"
    return f"| [{where}]({address}){mark} | {fault.known_fault} | `{name.removeprefix('lockstep.impls.')}` | {law} |\n"


def _short(found: re.Match[str]) -> str:
    return found[1] + (f"#{found[2]}" if found[2] else "")


if __name__ == "__main__":
    main()
