"""The time that a user waits: for a page of help, from the command to the first example, and to the first verdict on a
class as people publish it.

Each against what any program of its kind takes: `python -c pass`, and `python -c "import torch"`.
"""

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROUNDS = 5
# Notes when it is constructed: once to see whether it can be, and then by the ranks of the first example.
NOTED = """import time
from pathlib import Path

from lockstep.impls.naive import NaiveDataParallel


class Noted(NaiveDataParallel):
    def __init__(self, module):
        with Path({noted!r}).open("a") as file:
            file.write(f"{{time.time()}}\\n")
        super().__init__(module)
"""
LAW = "gradients_equal_the_mean"
# A class of each shape for which another way leads to it, from `properties.tests.shapes`, and words of a law's name.
PUBLISHED = {
    "one argument": ("OneArgument", LAW),
    "called after backward": ("average_gradients", LAW),
    "sharded optimizer": ("Sharded", "every_step_leaves"),
    "plain layers in shards": ("ShardsLayers", "a_real_model_gets_the_mean"),
}


def lines(rounds: int = ROUNDS) -> Iterator[str]:
    """The figures, as medians of so many rounds in which the four take turns."""
    bare = [sys.executable, "-c", "pass"]
    torch = [sys.executable, "-c", "import torch"]
    help_ = [sys.executable, "-m", "lockstep", "--help"]
    measured: dict[str, list[float]] = {"bare": [], "help": [], "torch": [], "first": []}
    takes: dict[str, Callable[[], float]] = {
        "bare": lambda: elapsed(bare),
        "help": lambda: elapsed(help_),
        "torch": lambda: elapsed(torch),
        "first": first_example,
    }
    for _ in range(rounds):
        for name, take in takes.items():
            measured[name].append(take())
    seconds = {name: statistics.median(each) for name, each in measured.items()}
    yield f"Until something happens, medians of {rounds} rounds:"
    yield f"  lockstep --help                    {seconds['help']:6.2f} s, {_times(seconds, 'help', 'bare')} `python`"
    first = f"{seconds['first']:6.2f} s, {_times(seconds, 'first', 'torch')} `import torch`"
    yield f"  lockstep check, the first example  {first}"


def _times(seconds: dict[str, float], one: str, other: str) -> str:
    return f"{seconds[one] / seconds[other]:.1f} times"


def elapsed(command: list[str]) -> float:
    """Seconds that a command takes."""
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def first_example() -> float:
    """Seconds from the start of `lockstep check` to the first example of a law, on the simulated ranks."""
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder, "noted")
        Path(folder, "noting.py").write_text(NOTED.format(noted=str(noted)))
        asked = ["check", f"{folder}/noting.py:Noted", "--world", "sim", "-k", LAW, "-n", "0", "-x"]
        began = time.time()
        run = subprocess.Popen([sys.executable, "-m", "lockstep", *asked], stdout=subprocess.DEVNULL)
        while not noted.exists() or len(times := noted.read_text().splitlines()) < 2:
            if run.poll() is not None:
                raise RuntimeError(f"lockstep check ended with {run.returncode} before its first example")
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)  # as Ctrl-C; the rest of the law tells nothing
        run.wait()
        return float(times[1]) - began


def of_published(rounds: int = ROUNDS, shapes: Sequence[str] = tuple(PUBLISHED)) -> Iterator[str]:
    """The figures of those shapes of published code, as medians of so many rounds."""
    measured: dict[str, list[float]] = {shape: [] for shape in ("torch", *shapes)}
    for _ in range(rounds):
        measured["torch"].append(elapsed([sys.executable, "-c", "import torch"]))
        for shape in shapes:
            measured[shape].append(first_verdict(*PUBLISHED[shape]))
    seconds = {name: statistics.median(each) for name, each in measured.items()}
    yield f"Until the first verdict is printed, on 100 examples of a law, medians of {rounds} rounds:"
    for shape in shapes:
        yield f"  {shape:32} {seconds[shape]:6.2f} s, {_times(seconds, shape, 'torch')} `import torch`"


def first_verdict(name: str, law: str) -> float:
    """Seconds until `lockstep check` has printed how a law ended for a class of `properties.tests.shapes`."""
    target = f"lockstep.properties.tests.shapes:{name}"
    return elapsed([sys.executable, "-m", "lockstep", "check", target, "--world", "sim", "-k", law, "-n", "0"])
