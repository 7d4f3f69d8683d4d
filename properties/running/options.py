"""The options of a run of the laws, for `lockstep check` and for pytest."""

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.properties.running.where import DEFAULT, WORLDS
from lockstep.worlds.devices import DEVICES

IMPLEMENTATION: Mapping[str, Any] = {
    "action": "append",
    "default": [],
    "metavar": "MODULE:NAME",
    "help": "check this class or factory, which takes the module to wrap (a module's name, or a path ending in .py); "
    "may be given several times (default: the suite checks itself and the implementations that it ships)",
}
# The keyword arguments by option, which are the same for argparse and pytest.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--world": {
        "action": "append",
        "default": [],
        "choices": WORLDS,
        "metavar": "WORLD",
        "help": f"any of {', '.join(WORLDS)} (default: {', '.join(DEFAULT)})",
    },
    "--device": {
        "choices": DEVICES,
        "metavar": "DEVICE",
        "help": "of tensors: cpu; or cuda, for gloo, nccl and torchrun",
    },
    "--in-process": {"action": "store_true", "help": "sim: run ranks in the test process, for a debugger"},
    "--any-order": {"action": "store_true", "help": "sim: draw the order of summation for each program"},
    "--ranks-per-gpu": {
        "type": int,
        "default": 1,
        "metavar": "N",
        "help": "nccl, and torchrun on GPUs: ranks per GPU",
    },
    "--cuda-stubs": {
        "action": "store_true",
        "help": "without a GPU: CUDA streams, events, nvtx do nothing",
    },
    "--model": {
        "metavar": "MODULE:NAME",
        "help": "a function that makes your model: check only that",
    },
    "--examples": {
        "type": int,
        "metavar": "N",
        "help": "programs per law, a tenth on real processes",
    },
    "--budget": {
        "metavar": "TIME",
        "help": "finish in about this time, such as 60s or 5m",
    },
    "--shard": {"metavar": "I/N", "help": "run only part I of N of the laws"},
    "--record": {"metavar": "FOLDER", "help": "keep progress here; the same command then resumes"},
    "--report": {"metavar": "FOLDER", "help": "for reports and scripts (default: lockstep-report)"},
    "--html": {"metavar": "FILE", "help": "write a page with verdicts, defects and pictures"},
    "--json": {"metavar": "FILE", "help": "write results as JSON, which `lockstep diff` reads"},
    "--known": {"metavar": "FILE", "help": "known failures: only new or mended ones fail the run"},
    "--write-known": {"metavar": "FILE", "help": "write a file for --known from the failures of this run"},
}


def add_options(add: Callable[..., Any]) -> None:
    """Add all options but the implementations. ``add``: argparse's `add_argument` or pytest's `addoption`."""
    for name, told in OPTIONS.items():
        add(name, **told)
