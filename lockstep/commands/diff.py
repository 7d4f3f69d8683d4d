"""`lockstep diff`: two runs that `lockstep check --json` has kept, side by side."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lockstep.properties.implementations import Unusable
from lockstep.properties.results.diff import differences
from lockstep.properties.results.document import read


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the differences. Raises SystemExit with 1 where something got worse."""
    parser.description = "Show new and mended defects, and laws with another verdict or number of examples."
    parser.epilog = (
        f"{parser.epilog}\n\nexit codes:\n  0  nothing got worse   1  a defect is new, or a law that held does not"
        "\n  2  wrong use; one line says how"
    )
    parser.add_argument("before", type=Path, help="a file that `lockstep check --json` wrote")
    parser.add_argument("after", type=Path, help="such a file of a later run")
    asked = parser.parse_args(arguments)
    try:
        lines, worse = differences(read(asked.before), read(asked.after))
    except Unusable as error:
        parser.error(str(error))
    print("\n".join(lines) if lines else "Both runs have the same verdicts, on the same number of examples.")
    raise SystemExit(int(worse))
