"""The certificate of a run in which no program failed: the programs, the target, and how to repeat the run."""

import json
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lockstep
from lockstep.properties.exhausting import language
from lockstep.properties.exhausting.judged import DELIVERED
from lockstep.properties.exhausting.running import Result
from lockstep.properties.reports.failure import FOLDER
from lockstep.properties.running.sources import fingerprint


def certificate(result: Result) -> dict[str, Any]:
    """The certificate as JSON data.

    ``target_digest``: of the sources of the target and Lockstep, and of installed packages.
    """
    asked, found = result.asked, result.found
    return {
        "says": f"every program of the core language up to size {asked.size} that is claimed holds",
        "lockstep": lockstep.__version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "target": asked.target,
        "target_digest": fingerprint(asked.target),
        "claims": {**vars(result.implementation.claims)},
        "bound": {
            "size": asked.size,
            "ranks": language.RANKS,
            "parameters": language.MOST_PARAMETERS,
            "events": language.MOST_EVENTS,
            "every_delivery_up_to_size": DELIVERED,
        },
        "shard": "{}/{}".format(*asked.shard),
        "programs": result.programs,
        "held": found.held,
        "runs": found.runs,
        "left_out": dict(found.left_out),
        "refused": dict(found.refused),
        "excused": dict(found.excused),
        "hash": found.digest,
        "seconds": round(result.seconds, 1),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(result: Result) -> Path:
    """Write the certificate to the folder for reports, and return its path. Raises OSError."""
    asked = result.asked
    part = "" if asked.shard == (1, 1) else "-part-{}-of-{}".format(*asked.shard)
    name = re.sub(r"[^\w.]+", "-", f"{asked.target}-up-to-size-{asked.size}{part}").strip("-.")
    path = (asked.report or FOLDER) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(certificate(result), indent=1) + "\n")
    return path
