"""pytest in the clone: Lockstep's plugin, and what tests of more than one folder are given."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.properties.kernels import device
from lockstep.worlds.contract import World
from lockstep.worlds.gloo import GlooWorld

pytest_plugins = ["lockstep.pytest_plugin"]

ROOT = Path(__file__).parent
LOST = pytest.StashKey[list[str]]()  # workers that died
PACKAGES = ("oracle", "worlds", "impls", "properties", "benchmarks")


def pytest_configure(config: pytest.Config) -> None:
    """`pytest properties/test_mean.py` means lockstep/properties/test_mean.py: a module has but one name."""
    config.args = [_by_its_name(argument, config.invocation_params.dir) for argument in config.args]


def _by_its_name(argument: str, folder: Path) -> str:
    path, colons, rest = argument.partition("::")
    inside = Path(path) if Path(path).is_absolute() else folder / path
    if inside.is_relative_to(ROOT) and inside.relative_to(ROOT).parts[:1] and inside.exists():
        package, *below = inside.relative_to(ROOT).parts
        if package in PACKAGES:
            return f"{ROOT.joinpath('lockstep', package, *below)}{colons}{rest}"
    return argument


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """pytest-xdist says that a worker has gone. This keeps its exit code, or the signal, as a negative number."""
    if error:
        with contextlib.suppress(Exception):  # execnet does not promise that it can be read
            status = node.gateway._io.popen.wait(10)
            node.config.stash.setdefault(LOST, []).append(f"{node.gateway.id} ended with {status}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how workers ended that died."""
    for told in config.stash.get(LOST, ()):
        terminalreporter.write_line(f"worker {told}")


@pytest.fixture(params=["sim", "gloo"])
def world(request: pytest.FixtureRequest) -> World:
    """Each of the two in turn."""
    found: World = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def of_kernels(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world on whose tensors kernels run: simulated ranks where they are interpreted, or ranks that share a GPU."""
    if device.choose() == "interpreted":
        yield request.getfixturevalue("sim")
        return
    world = GlooWorld(device="cuda")
    yield world
    world.close()
