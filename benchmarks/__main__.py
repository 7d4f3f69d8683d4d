"""Prints the figures. They are ratios taken in this one run; absolute times only tell their scale."""

import argparse
import datetime
import itertools
import os
import platform
from importlib.metadata import version

from lockstep.benchmarks import shares, start, worlds


def main() -> None:
    """All tables, after the date and versions."""
    parser = argparse.ArgumentParser(
        "python -m lockstep.benchmarks", description="Prints figures against peers, as ratios."
    )
    parser.add_argument("--rounds", type=int, default=worlds.ROUNDS, help="rounds of the table of worlds (%(default)s)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds {rounds}: there must be 1 or more")
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy", "hypothesis"))
    today = datetime.date.today().isoformat()
    # Others at work blur the ratios: a process that often waits is then treated better than one that only computes.
    machine = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    print(f"Lockstep, {today}: Python {platform.python_version()}, {versions}; {machine}\n")
    tables = (worlds.lines(rounds), shares.lines(), start.lines(), start.of_published())
    for line in itertools.chain.from_iterable(itertools.chain(table, [""]) for table in tables):
        print(line, flush=True)


if __name__ == "__main__":
    main()
