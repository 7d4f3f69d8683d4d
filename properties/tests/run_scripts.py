"""Runs scripts of counterexamples on the ranks of a world, which stand for the processes that torchrun starts."""

import ast
import contextlib
from collections.abc import Mapping
from typing import Any


def run_script(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Runs the text of a script on a rank whose process group is there already. Returns the lines that it prints."""
    tree = ast.parse(payload)
    groups = ("dist.init_process_group", "dist.barrier", "dist.destroy_process_group")
    tree.body = [each for each in tree.body if not ast.unparse(each).startswith(groups)]
    lines: list[str] = []
    names = {"__name__": "a script", "print": lambda *words, **_: lines.append(" ".join(map(str, words)).rstrip())}
    with contextlib.suppress(SystemExit):  # of a rank that takes no part, or that has seen what is wrong
        exec(compile(tree, "a script", "exec"), names)
    return {"lines": lines}
