"""Prints the figures. They are ratios taken in this one run; absolute times only tell their scale."""

import datetime
import os
import platform
from importlib.metadata import version

from benchmarks import shares, worlds


def main() -> None:
    """All tables, after the date and versions."""
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy", "hypothesis"))
    today = datetime.date.today().isoformat()
    # Others at work blur the ratios: a process that often waits is then treated better than one that only computes.
    machine = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    print(f"Lockstep, {today}: Python {platform.python_version()}, {versions}; {machine}\n")
    for table in (worlds, shares):
        for line in table.lines():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
