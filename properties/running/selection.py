"""Select the tests of a run: each claimed law on each implementation and world that can run it, or a part of these."""

import re
from collections.abc import Iterable
from typing import Any

import pytest

from lockstep.properties.catalogue import every_law
from lockstep.properties.implementations import Implementation, Unusable
from lockstep.properties.law import Law, concerns, sentence, turn
from lockstep.properties.running.bench import Bench
from lockstep.properties.running.probing import alternatives
from lockstep.properties.searching.others import Others


def pairs(bench: Bench) -> list[Any]:
    """Each implementation on each world, as parameters for pytest."""
    skipped = {world: pytest.mark.skip(reason=reason) for world, reason in bench.where.impossible.items()}
    return [
        pytest.param(
            (implementation, world),
            id=f"{implementation.short}-{world}",
            marks=[skipped[world]] if world in skipped else [],
        )
        for implementation in bench.implementations
        for world in bench.where.worlds
    ]


def of_kernels(bench: Bench) -> list[str]:
    """The names of the kernels under test."""
    return [one.name for one in bench.implementations if one.claims.kernels]


def runs(bench: Bench, item: pytest.Item, probed: bool) -> bool:
    """True if a test of pytest's is to run.

    A law on programs runs if `is_held` says so; otherwise the bench notes that it was left out. A law on kernels runs
    if kernels are under test.
    """
    function = getattr(item, "function", None)
    parameters: dict[str, Any] = getattr(item, "callspec").params if hasattr(item, "callspec") else {}  # noqa: B009
    if hasattr(function, "kernel_law"):
        return (
            isinstance(parameters["kernels"], str) and bench.model is None
        )  # the parameter is no name if no kernels are under test
    law: Law | None = getattr(function, "law", None)
    if law is None:
        return True
    implementation, world = parameters["trial"]
    if bench.model is not None:
        return bench.model.is_held(law, implementation.claims)
    if not (held := is_held(law, implementation, world, probed)):
        claimed = concerns(law, implementation.claims)
        bench.left_out.add((implementation.name, law.number, sentence(law), world if claimed else ""))
    return held


def hold_together(bench: Bench, chosen: Iterable[tuple[Implementation, str, Law]]) -> None:
    """Tell the bench which laws run on which implementation and world. A run made for one of them is judged by all."""
    for implementation, world, law in chosen:
        if concerns(law, implementation.claims):
            bench.others.setdefault((implementation.name, world), Others()).laws.append(law)
    for implementation in bench.implementations:
        for world in bench.where.worlds:
            others = bench.others[implementation.name, world]
            all_of_them = {law.name for law in every_law().values() if is_held(law, implementation, world, False)}
            others.whole = {law.name for law in others.laws} == all_of_them


def is_held(law: Law, implementation: Implementation, world: str, probed: bool) -> bool:
    """True if a law is checked on an implementation and a world.

    Both the implementation's claims and the world must allow it. ``probed``: on sim, also try a law if the code neither
    makes nor declines a claim that it needs.
    """
    if not concerns(law, implementation.claims):
        return probed and world == "sim" and bool(alternatives(law, implementation))
    return not law.only_on or world in law.only_on


def plainest_first(bench: Bench, item: pytest.Item) -> tuple[int, tuple[int, int], int]:
    """The sort key for the tests of a user's run: worlds, then laws, the plainest first, then implementations.

    Tests of kernels come last.
    """
    law: Law | None = getattr(getattr(item, "function", None), "law", None)
    if law is None:
        return len(bench.where.worlds), (0, 0), 0
    implementation, world = getattr(item, "callspec").params["trial"]  # noqa: B009
    return bench.where.worlds.index(world), turn(law), bench.names.index(implementation.name)


def part(shard: str | None, items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests of one part of a run: every n-th one on each world, because tests of different worlds differ in cost.

    Raises Unusable.
    """
    if shard is None:
        return items
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise Unusable(f"--shard {shard}: write I/N, with I from 1 to N, such as 2/4")
    mine, parts = int(match[1]) - 1, int(match[2])
    ordered = sorted(items, key=lambda item: item.nodeid.rstrip("]").rpartition("-")[2])
    kept = {id(item) for item in ordered[mine::parts]}
    return [item for item in items if id(item) in kept]
