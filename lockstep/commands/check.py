"""`lockstep check`: the laws against somebody's code, in a run of pytest of Lockstep's own.

Nothing of the user's pytest takes part: no ini file, no conftest, no plugin, no PYTEST_ADDOPTS.
"""

import argparse
import ast
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.home import PACKAGE
from lockstep.properties.catalogue import laws_named
from lockstep.properties.implementations import Unusable
from lockstep.properties.reports.failure import FOLDER
from lockstep.properties.reports.paragraphs import fit_the_terminal
from lockstep.properties.results.document import read
from lockstep.properties.results.explained import explained
from lockstep.properties.results.run import STORED
from lockstep.properties.running.options import add_options

LAWS = PACKAGE / "properties"
PROFILES = ("dev", "ci", "release", "nightly")
# pytest's own exit codes, where they are others here.
CODES = {pytest.ExitCode.USAGE_ERROR: 2, pytest.ExitCode.INTERRUPTED: 130}
# Options of pytest's that cannot be meant, and what is meant; so is all that begins with --cache.
SENSELESS = {
    ("--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first", "--sw", "--stepwise"): (
        "Lockstep keeps no pytest cache; each law already tries first the program that failed in the last run"
    ),
    ("--impl",): "write the target directly after `check`",
    ("-c", "--config-file", "--rootdir", "--confcutdir", "--import-mode", "-o", "--override-ini", "--pyargs"): (
        "the laws are not files of your project; `lockstep.law_tests` runs them in your own pytest"
    ),
    ("--hypothesis-profile",): "write --profile before `--`",
    ("--hypothesis-seed",): "write --seed before `--`",
}

_QUIET = ("-qq", "-o", "console_output_style=classic")


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Hold targets against the laws. Raises SystemExit with the exit code."""
    _add_to(parser)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    ours, behind = arguments[:cut], arguments[cut + 1 :]
    asked, unknown = parser.parse_known_args(ours)
    fit_the_terminal()
    if asked.explain:
        _explain(parser, asked)
        return
    if not asked.targets:
        parser.error(
            "name a TARGET, package.module:Name or path/to/file.py:Name, for example `lockstep check my_ddp:MyDDP`"
        )
    for option in unknown:
        parser.error(_unknown(option))
    for option in behind:
        if why := _senseless(option):
            parser.error(f"{option}: {why}")
    if not re.fullmatch(r"auto|logical|\d+", asked.n):
        parser.error(f"-n {asked.n}: give a number of processes, 0 to use only this process, or auto")
    if asked.k and not _is_expression(_as_keyword(asked.k)):
        parser.error(f"-k {asked.k}: write words of a law's name, or numbers, with `and`, `or`, `not`: P1 or P3")
    for target in asked.targets:
        if why := no_target(target):
            parser.error(why)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    if sys.stderr.isatty():  # the header comes only once all is imported
        print(f"lockstep check: importing torch and {', '.join(asked.targets)} ...", file=sys.stderr, flush=True)
    ended = pytest.main([*_of_pytest(), *_asked(asked), *behind, str(LAWS)])
    raise SystemExit(CODES.get(pytest.ExitCode(ended), int(ended)))


def _add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.usage = "lockstep check TARGET ... [options] [-- options of pytest]"
    parser.description = "Draw small training programs, run them on your code, compare bits to an oracle."
    parser.epilog = f"{parser.epilog}\n\nOptions of pytest, such as --tb, go after `--`. Exit codes: `lockstep --help`."
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="a class, or a function that makes the wrapper: package.module:Name, or path/to/file.py:Name",
    )
    add_options(parser.add_argument)
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        metavar="PROFILE",
        help="programs per law on sim: dev 100 (default), ci (default where CI is set) and release 500, nightly 5000",
    )
    parser.add_argument("--seed", metavar="N", type=int, help="draw the programs of an earlier run again")
    parser.add_argument("-n", metavar="N", default="auto", help="processes to use (default: one for each core)")
    parser.add_argument("-k", metavar="WORDS", help="only laws with these words in their names, or number P6")
    parser.add_argument("-x", action="store_true", help="stop at the first law that is broken")
    parser.add_argument(
        "-v", dest="every_law", action="store_true", help="list each law at the end, also those not claimed"
    )
    parser.add_argument("--junitxml", metavar="FILE", help="write the verdicts for a CI")
    parser.add_argument("--explain", metavar="D1", help="explain a defect of the last run and its law")


def _explain(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    """Print a defect of the last run that kept its results in the folder of the report."""
    stored = Path(asked.report or FOLDER) / STORED
    if not stored.exists():
        parser.error(f"--explain {asked.explain}: no run has kept a defect in {stored.parent}; check your class first")
    try:
        targets = [each for each in read(stored).targets if each.name in asked.targets or not asked.targets]
    except Unusable as error:
        parser.error(str(error))
    found = [(each.name, defect) for each in targets for defect in each.defects]
    chosen = [(name, defect) for name, defect in found if defect.id == asked.explain.upper()]
    if not chosen:
        known = ", ".join(dict.fromkeys(defect.id for _, defect in found)) or "none"
        parser.error(f"--explain {asked.explain}: the last run has no such defect; it has {known}")
    for name, defect in chosen:
        print("\n".join(explained(name, defect)))


def _of_pytest() -> list[str]:
    """The arguments that make a pytest run independent of the files around it, and silent but for Lockstep."""
    plugins = ("xdist.plugin", "_hypothesis_pytestplugin", "lockstep.pytest_plugin", "no:cacheprovider")
    loaded = [part for plugin in plugins for part in ("-p", plugin)]
    return [
        "-c",
        os.devnull,
        "--rootdir",
        str(PACKAGE),
        "--import-mode=importlib",
        "--strict-markers",
        "-rN",
        *_QUIET,
        *loaded,
    ]


def _asked(asked: argparse.Namespace) -> list[str]:
    """The options as pytest has them."""
    told = [part for target in dict.fromkeys(asked.targets) for part in ("--impl", target)]
    told += [part for world in asked.world for part in ("--world", world)]
    flags = {"--in-process": asked.in_process, "--any-order": asked.any_order, "-x": asked.x}
    flags["--cuda-stubs"], flags["--every-law"] = asked.cuda_stubs, asked.every_law
    told += [flag for flag, wanted in flags.items() if wanted]
    values = {
        "--device": asked.device,
        "--model": asked.model,
        "--ranks-per-gpu": asked.ranks_per_gpu,
        "--examples": asked.examples,
        "--budget": asked.budget,
        "--shard": asked.shard,
        "--record": asked.record,
        "--report": asked.report,
        "--html": asked.html and Path(asked.html).absolute(),
        "--json": asked.json,
        "--known": asked.known,
        "--write-known": asked.write_known,
        "--hypothesis-profile": asked.profile,
        "--hypothesis-seed": asked.seed,
        "-k": asked.k and _as_keyword(asked.k),
        "--junitxml": asked.junitxml and Path(asked.junitxml).absolute(),
    }
    told += [part for name, value in values.items() if value is not None for part in (name, str(value))]
    alone = asked.in_process or "torchrun" in asked.world  # one process holds all laws
    # One law at a time for each process, in the order of the laws.
    spread = [] if alone and asked.n == "auto" else ["-n", asked.n, "--maxschedchunk", "1"]
    return [*told, *spread]


def _as_keyword(words: str) -> str:
    """Translate `-k` for pytest: words of a law's name as it is printed, a number such as P6, or an
    expression of such. A comma means or.
    """
    if "," in words:
        return " or ".join(f"({_as_keyword(part)})" for part in words.split(","))
    if not {*re.findall(r"\w+|[()]", words)} & {"and", "or", "not", "(", ")"}:
        words = "_".join(words.split())
    # A number that no law has stays as it is, and is in no name.
    return re.sub(r"\b[Pp]\d+\b", lambda number: f"({' or '.join(laws_named(number[0])) or number[0]})", words)


def _is_expression(keyword: str) -> bool:
    """True if pytest can read it: words with and, or, not and parentheses."""
    words = re.sub(r"[^\s()]+", lambda word: word[0] if word[0] in ("and", "or", "not") else "word", keyword)
    try:
        parts = [*ast.walk(ast.parse(words.strip(), mode="eval").body)]
    except SyntaxError:
        return False
    return all(
        isinstance(part, ast.BoolOp | ast.boolop | ast.UnaryOp | ast.Not | ast.Name | ast.Load) for part in parts
    )


def _unknown(option: str) -> str:
    """The error for an option that does not exist."""
    why = _senseless(option)
    return f"{option}: {why}" if why else f"{option}: there is no such option; options of pytest go after `--`"


def _senseless(option: str) -> str:
    """The reason why a pytest option makes no sense here; empty if it does."""
    name = option.partition("=")[0]
    found = (why for names, why in SENSELESS.items() if name in names or name.startswith("--cache"))
    if (why := next(found, "")) or option.startswith("-"):
        return why
    return "the laws are not files of your project; choose laws with -k" if option.endswith(".py") else ""


def no_target(target: str) -> str:
    """The error in the spelling of a target; empty if there is none."""
    place, colon, attribute = target.rpartition(":")
    if colon and place and attribute:
        return ""
    path = Path(target)
    if path.is_dir():
        return f"{target}: this is a folder; write path/to/file.py:Name, where Name is a class or function"
    if path.suffix == ".py":
        return f"{target}: write {target}:Name, where Name is a class or function in that file"
    return f"{target}: write package.module:Name or path/to/file.py:Name"
