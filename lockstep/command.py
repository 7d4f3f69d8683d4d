"""The command `lockstep`: its first page, and which module each of its commands is."""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from lockstep import __version__

# Of each command: what it does, an example, and the module whose `main` takes a parser and its arguments.
COMMANDS = {
    "check": ("check your code against the laws", "check my_ddp:MyDDP", "lockstep.commands.check"),
    "diff": (
        "show the differences between two runs of `check --json`",
        "diff before.json after.json",
        "lockstep.commands.diff",
    ),
    "conformance": (
        "hold frameworks that are installed against the laws, as pages",
        "conformance torch --examples 10",
        "lockstep.commands.conformance",
    ),
    "exhaust": (
        "run every small program, and find the smallest one that fails",
        "exhaust my_ddp:MyDDP --size 9",
        "lockstep.commands.exhaust",
    ),
    "demo": ("find a known bug of DDP from scratch, to see how Lockstep works", "demo", "lockstep.properties.demo"),
    "run": (
        "draw one training step: when each rank computes, sends and waits",
        "run my_ddp:MyDDP",
        "lockstep.commands.run",
    ),
    "laws": ("list the laws, or explain some of them", "laws P6", "lockstep.commands.laws"),
    "claims": ("list the claims that a class can make, or explain one", "claims unused", "lockstep.commands.claims"),
    "world": (
        "show the order in which an all-reduce adds the ranks' values",
        "world --world gloo --ranks 4",
        "lockstep.properties.soundness",
    ),
    "schedule": (
        "list or draw the messages of an all-reduce algorithm",
        "schedule gloo --ranks 4",
        "lockstep.commands.schedule",
    ),
    "cost": (
        "estimate memory, communication and time of a step for each ZeRO stage",
        "cost --model gpt2 --ranks 8",
        "lockstep.commands.cost",
    ),
}
EXIT_CODES = """exit codes:
  0  every law holds        1  a law is broken       2  wrong use; the error says how
  3  an error in Lockstep   5  no law was checked  130  interrupted
"""

LEAST = 40  # columns of an error, however narrow the terminal


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong, and prints no usage."""

    def error(self, message: str) -> NoReturn:
        """End with 2, the exit code of wrong use. The lines are as long as the terminal is wide; piped, 80 columns."""
        room = max(LEAST, shutil.get_terminal_size().columns - 1)
        words = textwrap.fill(
            f"{self.prog}: {message}", room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        self.exit(2, f"{words}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Raises SystemExit with its exit code."""
    told = list(sys.argv[1:] if arguments is None else arguments)
    if not told:
        first_page().print_help()
        raise SystemExit(2)
    name = first_page().parse_args(told[:1]).command
    try:
        import_module(COMMANDS[name][2]).main(parser_of(name), told[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"lockstep {name}: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # as of `lockstep laws | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:  # of a full disk, say
        print(f"lockstep {name}: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(3) from None


def first_page() -> Parser:
    """The parser of the first word."""
    width = max(map(len, COMMANDS)) + 2
    told = "\n".join(f"  {name:{width}}{does}" for name, (does, _, _) in COMMANDS.items())
    found = Parser(
        prog="lockstep",
        usage="lockstep COMMAND ...",
        description="Lockstep finds the smallest training program on which a data-parallel implementation is wrong.",
        epilog=f"commands:\n{told}\n\n`lockstep COMMAND --help` lists the options. Begin with:\n\n"
        f"  lockstep check my_package.ddp:MyDDP\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--version", action="version", version=f"lockstep {__version__}")
    found.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    return found


def parser_of(name: str) -> Parser:
    """The parser of one command, with an example at its end."""
    does, example, _ = COMMANDS[name]
    return Parser(
        prog=f"lockstep {name}",
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"example:\n  lockstep {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
