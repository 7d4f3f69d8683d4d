"""The options that Lockstep adds to pytest's."""

import pytest

from properties.running.where import DEFAULT, WORLDS
from worlds.devices import DEVICES


def add_options(parser: pytest.Parser) -> None:
    """Which code, on which worlds, and what is kept of the run."""
    group = parser.getgroup("lockstep", "Lockstep: the laws of data-parallel training")
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="hold the laws against this class or factory, which takes the module to wrap (a module's name, or a path "
        "ending in .py); may be given several times; without it, the suite checks itself and what it ships",
    )
    group.addoption(
        "--world",
        action="append",
        default=[],
        choices=WORLDS,
        help="where ranks run: sim, one process that simulates them; gloo, one process per rank; nccl, one GPU per "
        "rank; torchrun, the ranks of the torchrun job that started pytest; may be given several times "
        f"(default: {' and '.join(DEFAULT)}; with --in-process sim, with --device cuda gloo)",
    )
    group.addoption("--device", choices=DEVICES, help="where ranks put tensors (default: cuda for nccl, else cpu)")
    group.addoption(
        "--in-process", action="store_true", help="run the simulated world in pytest's own process, for a debugger"
    )
    group.addoption(
        "--any-order",
        action="store_true",
        help="sim: the reductions of each example add in an order drawn for it, not in that of ranks",
    )
    group.addoption(
        "--ranks-per-gpu",
        type=int,
        default=1,
        metavar="N",
        help="nccl, and torchrun with --device cuda: let N ranks share a GPU; they talk as if on different hosts "
        "(default: 1)",
    )
    group.addoption(
        "--shard", metavar="I/N", help="run the I-th of N parts of the tests; the parts together are all of them"
    )
    group.addoption(
        "--record",
        metavar="FOLDER",
        help="keep what is done in this folder: seed, examples, verdicts; a run that was stopped goes on from there "
        "when it is started again with the same folder",
    )
