"""The worlds and the device of a run, and the reasons why this machine or command cannot have a world."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.properties.implementations import Unusable
from lockstep.worlds import devices, torchrun
from lockstep.worlds.contract import World
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.in_process import InProcessSim
from lockstep.worlds.nccl import NcclWorld
from lockstep.worlds.sim.world import SimWorld

WORLDS = ("sim", "gloo", "nccl", "torchrun")
DEFAULT = ("sim", "gloo")
STARTED_HERE = ("sim", "gloo", "nccl")  # worlds that a command starts itself; the ranks of torchrun belong to a job


@dataclass(frozen=True)
class Where:
    """The requested worlds, and those that cannot run here: world -> reason, in one line. See `decide`."""

    worlds: tuple[str, ...]
    device: str | None  # None: each world's usual one
    in_process: bool
    any_order: bool
    ranks_per_gpu: int
    machine: Mapping[str, Any]  # from `worlds.devices.look`; empty if it was not needed
    impossible: Mapping[str, str]

    def start(self, name: str) -> World:
        """The world of that name."""
        if name == "sim":
            return InProcessSim() if self.in_process else SimWorld()
        if name == "nccl":
            return NcclWorld(len(self.machine["gpus"]), self.ranks_per_gpu)
        if name == "torchrun":
            backend = "nccl" if self.device == "cuda" else "gloo"
            return torchrun.TorchrunWorld(backend, self.device or "cpu", ranks_per_gpu=self.ranks_per_gpu)
        return GlooWorld(device=self.device or "cpu")

    def words(self) -> list[str]:
        """The worlds for the header of a run, with their device, and what cannot run with the reason."""
        told = []
        for name in self.worlds:
            device = self.device or ("cuda" if name == "nccl" else "cpu")
            inside = ", ".join((device, *self._words_of(name)))
            told.append(f"{name} cannot run here" if name in self.impossible else f"{name} ({inside})")
        gpus = self.machine.get("gpus", [])
        lines = [f"lockstep: on {', '.join(told)}"]
        if gpus:
            lines[0] += f"; {len(gpus)} x {gpus[0]}, NCCL {self.machine['nccl'] or 'missing'}"
        return [*lines, *(f"lockstep: skipped: {reason}" for reason in self.impossible.values())]

    def _words_of(self, name: str) -> list[str]:
        if name == "sim":
            inside = ["in pytest's process"] if self.in_process else []
            return [*inside, "each example in a drawn order of reduction"] if self.any_order else inside
        if name == "nccl":
            ranks = len(self.machine.get("gpus", [])) * self.ranks_per_gpu
            return ["1 rank; --ranks-per-gpu 4 lets 4 share the GPU"] if ranks == 1 else [f"{ranks} ranks"]
        return ["ranks of this job"] if name == "torchrun" else []


def decide(
    worlds: list[str], device: str | None, in_process: bool, ranks_per_gpu: int, workers: bool, any_order: bool = False
) -> Where:
    """Decide the place from the options. ``workers``: pytest-xdist spreads the tests over processes.

    Raises Unusable, in one line, for options that contradict one another or leave nothing that can run here.
    """
    usual = ("sim",) if in_process else ("gloo",) if device == "cuda" else DEFAULT
    asked = tuple(dict.fromkeys(worlds)) or usual
    if in_process and asked != ("sim",):
        raise Unusable(
            f"--in-process: only the simulated world can run in pytest's own process, not {' or '.join(asked)}"
        )
    if any_order and "sim" not in asked:
        raise Unusable(f"--any-order: only the simulated world's order of reduction can be chosen, not {asked[0]}'s")
    if device == "cuda" and "sim" in asked:
        raise Unusable("--device cuda: simulated ranks have CPU tensors only; say --world gloo, nccl or torchrun")
    if device == "cpu" and "nccl" in asked:
        raise Unusable("--device cpu: NCCL carries CUDA tensors only; leave --device out, or say --world gloo")
    if ranks_per_gpu < 1:
        raise Unusable(f"--ranks-per-gpu {ranks_per_gpu}: a GPU holds at least one rank")
    on_nccl = "nccl" in asked or ("torchrun" in asked and device == "cuda")
    if ranks_per_gpu > 1 and not on_nccl:
        raise Unusable(
            "--ranks-per-gpu: use it with --world nccl, or with --world torchrun --device cuda; on gloo, ranks share "
            "GPUs without it"
        )
    if "torchrun" in asked and workers:
        raise Unusable("--world torchrun: the ranks of a job serve one pytest process, so leave -n out")
    machine: Mapping[str, Any] = devices.look() if device == "cuda" or "nccl" in asked else {}
    impossible = {name: reason for name in asked if (reason := _impossible(name, device, machine, ranks_per_gpu))}
    if len(impossible) == len(asked):
        raise Unusable("; ".join(impossible.values()))
    return Where(asked, device, in_process, any_order, ranks_per_gpu, machine, impossible)


def add_world(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the ranks of a command run, for `start_for`."""
    parser.add_argument("--world", choices=STARTED_HERE, default="gloo", help="where ranks run (default: %(default)s)")
    parser.add_argument("--device", choices=devices.DEVICES, help="of their tensors (default: cuda for nccl, else cpu)")
    parser.add_argument("--ranks-per-gpu", type=int, default=1, metavar="N", help="nccl: N share a GPU (default: 1)")


def start_for(parser: argparse.ArgumentParser, asked: argparse.Namespace, ranks: int, any_order: bool = False) -> World:
    """The world requested by the options of a command, with so many ranks.

    Ends the command with a message of one line if the world cannot run here.
    """
    try:
        world = decide([asked.world], asked.device, False, asked.ranks_per_gpu, False, any_order).start(asked.world)
    except Unusable as error:
        parser.error(str(error))
    if world.ranks is not None and ranks > world.ranks:
        parser.error(
            f"{ranks} ranks are needed, and --world {asked.world} has {world.ranks} here; --ranks-per-gpu lets more "
            "share a GPU"
        )
    return world


def _impossible(name: str, device: str | None, machine: Mapping[str, Any], ranks_per_gpu: int) -> str:
    if name == "torchrun" and (unset := torchrun.missing_variables()):
        how = "torchrun --nproc-per-node=4 -m pytest --world torchrun"
        return f"--world torchrun: start pytest with torchrun ({how}); {', '.join(unset)} not set"
    if (name == "nccl" or device == "cuda") and not machine["gpus"]:
        asked = "--world nccl" if name == "nccl" else f"--world {name} --device cuda"
        return f"{asked}: needs a CUDA GPU, and torch {machine['version']} sees none here"
    if (name == "nccl" or (name == "torchrun" and device == "cuda")) and not machine["nccl"]:
        return f"--world {name}: torch {machine['version']} has no NCCL"
    if name == "torchrun" and device == "cuda":
        ranks, gpus = torchrun.ranks_of_this_host(), len(machine["gpus"])
        if ranks > gpus * ranks_per_gpu:
            enough = -(-ranks // gpus)
            return (
                "--world torchrun --device cuda: NCCL takes a GPU for each rank, and this host has "
                f"{gpus} for {ranks}; --ranks-per-gpu {enough} lets {enough} share one"
            )
    return ""
