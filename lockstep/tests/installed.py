"""Lockstep as a user has it: a wheel of this clone in an environment of its own, and folders to run it from."""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from lockstep.properties.tests.test_bad_input import ROOT

# The class that README takes as its example.
README_CLASS = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
LEFT_BEHIND = (".git", ".tox", ".venv", ".hypothesis", "build", "*.egg-info", "__pycache__", "lockstep-report")


@dataclass(frozen=True)
class Environment:
    """An environment that has Lockstep. ``python``: its interpreter; ``variables``: what the shell is to have."""

    python: Path
    variables: dict[str, str]

    def run(self, folder: Path, *arguments: str, stdin: str | None = None) -> tuple[int, str]:
        """The exit code and the output of Python with these arguments, started from a folder."""
        told = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CI")}
        told |= self.variables
        command = [str(self.python), *arguments]
        ran = subprocess.run(
            command,
            cwd=folder,
            env=told,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        return ran.returncode, ran.stdout


def install(folder: Path) -> Environment:
    """Makes an environment and installs a wheel of this clone in it. The packages that Lockstep needs are those of the
    environment that runs this: they are installed once.
    """
    clone, environment = folder / "clone", folder / "environment"
    shutil.copytree(ROOT, clone, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(clone)], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    (own,) = environment.glob("lib/python*/site-packages")
    # A line that is a folder is put on the path, and links of editable installations in it are not followed.
    (own / "of_the_suite.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Environment(python, {})


def clone() -> Environment:
    """This clone, installed nowhere, as `PYTHONPATH` gives it."""
    return Environment(Path(sys.executable), {"PYTHONPATH": str(ROOT)})
