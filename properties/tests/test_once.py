"""One process of a run finds a result for all: once, also if many ask at a time, and after a death."""

import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

from lockstep.properties.running.once import once

DIES = """
import os, sys
from pathlib import Path
from lockstep.properties.running.once import once
once(Path(sys.argv[1]), "thing", lambda: os._exit(7))
"""


def _asked(folder: Path) -> str:
    def find() -> str:
        with (folder / "calls").open("a") as calls:
            calls.write("called\n")
        return "found"

    return once(folder, "thing", find)


def test_many_who_ask_at_a_time_have_it_found_once(tmp_path: Path) -> None:
    """Each gets the answer, and one has looked for it."""
    with ThreadPool(8) as pool:
        assert pool.map(_asked, [tmp_path] * 8, chunksize=1) == ["found"] * 8
    assert (tmp_path / "calls").read_text() == "called\n"


def test_a_process_that_dies_leaves_it_to_the_next(tmp_path: Path) -> None:
    """A process that ends while it looks has found nothing, and holds nobody up."""
    assert subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False).returncode == 7
    assert _asked(tmp_path) == "found"


def test_one_process_asks_nobody() -> None:
    """Without a folder that processes share there is nothing to wait for."""
    assert once(None, "thing", lambda: "mine") == "mine"
