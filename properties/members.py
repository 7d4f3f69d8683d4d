"""Ranks that are a group in a larger world, and what they report, told as if the group were all there is.

The first ``outsiders`` ranks of the world make the group with the others and take no part in anything else; rank r of
the group is rank ``outsiders`` + r of the world. So the world's rank 0 is no member, and a rank's numbers in the two
differ. Judges, pictures and reports see members alone, by their ranks in the group.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from oracle.program import Scenario
from worlds.contract import DEFAULT, Collective, Hazard, Outcome, Passage, RankReport, group_label, members_of

_NO_MEMBER = re.compile(r"rank \d+ is not part of group")
# Of what kinds of errors the words are the world's, which counts its own ranks.
_OF_THE_WORLD = ("mismatch", "deadlock", "abandoned", "timeout")
# c10d numbers groups as they are made, and the default one is 0.
_NAME = "1"


def enter(scenario: Scenario, rank: int) -> tuple[Any, int]:
    """The group that trains, None if it is the whole world, and this rank's rank in it, below zero for an outsider.

    Every rank of the world calls it, before any other group is made.
    """
    if not scenario.outsiders:
        return None, rank
    import torch.distributed as dist  # where the ranks are

    return dist.new_group(list(_ranks(scenario))), rank - scenario.outsiders


def as_a_world(outcome: Outcome, scenario: Scenario) -> Outcome:
    """The members' reports, in which the group is the default one, and ranks are counted in it."""
    if not scenario.outsiders:
        return outcome
    return tuple(_report(report, scenario) for report in outcome[scenario.outsiders :])


def misnames_a_rank(scenario: object, message: str) -> bool:
    """Whether c10d says that a rank was counted in the world where the group's was meant, or the other way round.

    Nobody refuses a group on purpose in these words.
    """
    return bool(getattr(scenario, "outsiders", 0) and _NO_MEMBER.search(message))


def _ranks(scenario: Scenario) -> range:
    return range(scenario.outsiders, scenario.outsiders + scenario.world_size)


def _report(report: RankReport, scenario: Scenario) -> RankReport:
    error, first = report.error, scenario.outsiders
    if error is not None and error.kind in _OF_THE_WORLD:
        counted = f"ranks and default group are the whole world's, where the group's rank 0 is rank {first}"
        error = replace(error, message=f"{error.message} ({counted})")
    return replace(
        report,
        error=error,
        collectives=tuple(_collective(call, scenario) for call in report.collectives),
        timeline=tuple(_passage(each, scenario) for each in report.timeline),
        hazards=tuple(_hazard(each, scenario) for each in report.hazards),
    )


def _collective(call: Collective, scenario: Scenario) -> Collective:
    root = call.root - scenario.outsiders if call.root >= scenario.outsiders else -1
    return replace(call, root=root, group=_group(call.group, scenario))


def _group(label: str, scenario: Scenario) -> str:
    """Of a group with outsiders, which waits for them in vain, the members."""
    if label == group_label(_ranks(scenario), _NAME):
        return DEFAULT
    members = members_of(label, scenario.outsiders + scenario.world_size)
    name = "the whole world" if label == DEFAULT else label.partition(", ")[2]
    return group_label(_inside(members, scenario), name)


def _inside(ranks: Iterable[int], scenario: Scenario) -> tuple[int, ...]:
    return tuple(rank - scenario.outsiders for rank in ranks if rank >= scenario.outsiders)


def _passage(passage: Passage, scenario: Scenario) -> Passage:
    members = _inside(passage.members, scenario)
    return replace(passage, collective=_collective(passage.collective, scenario), members=members)


def _hazard(hazard: Hazard, scenario: Scenario) -> Hazard:
    collective = _collective(hazard.collective, scenario)
    return replace(hazard, rank=hazard.rank - scenario.outsiders, collective=collective)
