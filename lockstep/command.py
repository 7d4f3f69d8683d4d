"""The command `lockstep`: its first page, and which module each of its commands is."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from lockstep import __version__

# Of each command: what it does, an example, and the module whose `main` takes its arguments.
COMMANDS = {
    "check": ("hold your code against the laws", "lockstep check my_ddp:MyDDP", "lockstep.commands.check"),
    "demo": ("find the bug that started Lockstep, from scratch", "lockstep demo", "lockstep.properties.demo"),
    "laws": ("list the laws, or explain some", "lockstep laws P6", "lockstep.commands.laws"),
    "claims": ("list what code can claim, or explain a claim", "lockstep claims unused", "lockstep.commands.claims"),
    "world": (
        "show in which order an all-reduce adds",
        "lockstep world --world gloo --ranks 4",
        "lockstep.properties.soundness",
    ),
    "schedule": (
        "show the messages of a collective",
        "lockstep schedule gloo --ranks 4",
        "lockstep.oracle.schedules",
    ),
    "cost": ("show bytes and time of ZeRO's stages, for one example", "lockstep cost", "lockstep.oracle.cost"),
}
EXIT_CODES = """exit codes:
  0  every law holds        1  a law is broken      2  wrong use, told in one line
  3  an error in Lockstep   5  no law was held     130  interrupted
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the first word."""
    width = max(map(len, COMMANDS)) + 2
    told = "\n".join(f"  {name:{width}}{does}" for name, (does, _, _) in COMMANDS.items())
    found = argparse.ArgumentParser(
        prog="lockstep",
        usage="lockstep COMMAND ...",
        description="Lockstep finds the smallest training program on which a data-parallel implementation is wrong.",
        epilog=f"commands:\n{told}\n\n`lockstep COMMAND --help` tells the options. Begin with:\n\n"
        f"  lockstep check my_package.ddp:MyDDP\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--version", action="version", version=f"lockstep {__version__}")
    found.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    found.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Raises SystemExit with its exit code."""
    told = list(sys.argv[1:] if arguments is None else arguments)
    if not told:
        parser().print_help()
        raise SystemExit(2)
    first = parser().parse_args(told[:1])
    try:
        import_module(COMMANDS[first.command][2]).main(told[1:])
    except KeyboardInterrupt:
        print(f"lockstep {first.command}: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # as of `lockstep laws | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None


def subparser(name: str, description: str | None = None, epilog: str = "") -> argparse.ArgumentParser:
    """The parser of one command, with an example at its end."""
    does, example, _ = COMMANDS[name]
    return argparse.ArgumentParser(
        prog=f"lockstep {name}",
        description=description or f"{does[0].upper()}{does[1:]}.",
        epilog=f"example:\n  {example}\n{epilog and f'{chr(10)}{epilog}'}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
