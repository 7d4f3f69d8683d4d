"""Runs scripts of findings one after the other, each in a copy of a process that has imported torch: prints a line of
JSON for each, with its exit code and output.
"""

import argparse
import json
import os
import runpy
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

# What DDP and FSDP import when they are first used.
import torch._dynamo
import torch.distributed.checkpoint.state_dict


def run(path: Path) -> tuple[int, str]:
    """The exit code of a script, and what it prints."""
    with tempfile.TemporaryFile("w+") as output:
        if (child := os.fork()) == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            code = 3
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as ended:
                code = int(ended.code or 0)
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read()


def main() -> None:
    """Run the scripts that are named."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.properties.tests.run_findings", description=__doc__)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="of docs/findings")
    parser.add_argument("--into", type=Path, metavar="FILE", help="keep the exit codes for this torch, as JSON")
    asked = parser.parse_args()
    codes = {}
    for name in asked.scripts:
        ended, printed = run(Path(name))
        codes[Path(name).stem] = ended
        print(json.dumps({"path": name, "code": ended, "output": printed}), flush=True)
    if asked.into:
        keep(asked.into, torch.__version__, codes)


def keep(place: Path, version: str, codes: dict[str, int]) -> None:
    """Write the exit codes for one version beside those for others."""
    kept = json.loads(place.read_text("utf-8")) if place.is_file() else {"ends": {}}
    told = {"date": datetime.now(UTC).date().isoformat(), "ends": {**kept["ends"], version: codes}}
    place.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
