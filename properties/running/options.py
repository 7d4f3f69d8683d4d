"""The options of a run of the laws: those of `lockstep check`, and those that Lockstep adds to pytest's."""

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.properties.running.where import DEFAULT, WORLDS
from lockstep.worlds.devices import DEVICES

IMPLEMENTATION: Mapping[str, Any] = {
    "action": "append",
    "default": [],
    "metavar": "MODULE:NAME",
    "help": "hold the laws against this class or factory, which takes the module to wrap (a module's name, or a path "
    "ending in .py); may be given several times; without it, the suite checks itself and what it ships",
}
# By their names; what else argparse and pytest are told alike.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--world": {
        "action": "append",
        "default": [],
        "choices": WORLDS,
        "metavar": "WORLD",
        "help": f"where ranks run: {', '.join(WORLDS)}; may be given several times (default: {' and '.join(DEFAULT)})",
    },
    "--device": {
        "choices": DEVICES,
        "metavar": "DEVICE",
        "help": "of tensors: cpu, or cuda for gloo, nccl and torchrun",
    },
    "--in-process": {"action": "store_true", "help": "sim: in the process of the tests, for a debugger"},
    "--any-order": {"action": "store_true", "help": "sim: reductions add in an order drawn for each example"},
    "--ranks-per-gpu": {
        "type": int,
        "default": 1,
        "metavar": "N",
        "help": "nccl, and torchrun on GPUs: ranks that share one",
    },
    "--cuda-stubs": {
        "action": "store_true",
        "help": "without a GPU: CUDA streams, events and nvtx do nothing",
    },
    "--model": {
        "metavar": "MODULE:NAME",
        "help": "a function that makes your model: laws on that alone",
    },
    "--budget": {
        "metavar": "TIME",
        "help": "hold all laws in about this time, such as 60s or 5m",
    },
    "--shard": {"metavar": "I/N", "help": "only the I-th of N parts of the laws"},
    "--record": {"metavar": "FOLDER", "help": "keep what is done; started again, a stopped run goes on"},
    "--report": {"metavar": "FOLDER", "help": "for the scripts of failures (default: lockstep-report)"},
    "--html": {"metavar": "FILE", "help": "write verdicts and defects as a page, with pictures"},
    "--json": {"metavar": "FILE", "help": "write the results as data; `lockstep diff` reads it"},
    "--known": {"metavar": "FILE", "help": "known failures: new ones fail the run, and mended ones"},
    "--write-known": {"metavar": "FILE", "help": "write such a file, of what fails"},
}


def add_options(add: Callable[..., Any]) -> None:
    """Adds all but the implementations, by argparse's `add_argument` or pytest's `addoption`."""
    for name, told in OPTIONS.items():
        add(name, **told)
