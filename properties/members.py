"""Ranks that are a group in a larger world. Their reports are converted as if the group were the whole world.

The other ranks, as many as `Scenario.outsiders` says, create the group together with the members and take no further
part. The world's rank 0 is not a member, so a rank's numbers in world and group differ. Judges, pictures and reports
see only members, by their ranks in the group.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lockstep.oracle.program import Scenario
from lockstep.worlds.contract import DEFAULT, Collective, Hazard, Outcome, Passage, RankReport, group_label, members_of

WHOLE_WORLD = "the whole world"  # the name of the world's default group if members have their own group

_NO_MEMBER = re.compile(r"rank \d+ is not part of group")
# Kinds of errors whose messages the world itself writes, with its own rank numbers. They contain no exception's
# message.
_OF_THE_WORLD = ("mismatch", "deadlock", "timeout")
_GROUP = re.compile(rf"the ({DEFAULT}|ranks [\d,]+, \S+) group")
_RANKS = re.compile(r"\brank (\d+(?:, \d+\b(?! x))*)")  # "rank 0", "rank 0, 2"; not "rank 0, 2 x float32"
# Torch numbers groups in the order of creation. The default group is 0.
_NAME = "1"


def enter(scenario: Scenario, rank: int) -> tuple[Any, int]:
    """The group that trains, None if it is the whole world, and this rank's rank in it; negative for an outsider.

    Every rank of the world must call it before any other group is made.
    """
    if not scenario.outsiders:
        return None, rank
    import torch.distributed as dist  # imported only on the ranks

    group, members = dist.new_group(list(scenario.members)), scenario.members
    return group, members.index(rank) if rank in members else -1


def as_a_world(outcome: Outcome, scenario: Scenario) -> Outcome:
    """The members' reports with the group as the default group, and with ranks numbered in it."""
    if not scenario.outsiders:
        return outcome
    return tuple(_report(outcome[rank], scenario) for rank in scenario.members)


def misnames_a_rank(scenario: object, message: str) -> bool:
    """True if c10d complains that a rank of the world was given where a rank of the group was expected, or the reverse.

    An intended refusal of a group would not use these words.
    """
    return bool(getattr(scenario, "outsiders", 0) and _NO_MEMBER.search(message))


def _report(report: RankReport, scenario: Scenario) -> RankReport:
    error = report.error
    if error is not None and error.kind in _OF_THE_WORLD:
        error = replace(error, message=_told_inside(error.message, scenario))
    return replace(
        report,
        error=error,
        collectives=tuple(_collective(call, scenario) for call in report.collectives),
        timeline=tuple(_passage(each, scenario) for each in report.timeline),
        hazards=tuple(_hazard(each, scenario) for each in report.hazards),
    )


def _told_inside(message: str, scenario: Scenario) -> str:
    """A message of the world with groups named and ranks numbered as the members do."""

    def group(found: re.Match[str]) -> str:
        label = _group(found[1], scenario)
        return WHOLE_WORLD if label.endswith(WHOLE_WORLD) else f"the {label} group"

    def ranks(found: re.Match[str]) -> str:
        numbers = [int(number) for number in found[1].split(", ")]
        inside, outside = _inside(numbers, scenario), [each for each in numbers if each not in scenario.members]
        told = [f"the world's rank {', '.join(map(str, outside))}"] if outside else []
        return " and ".join([*told, *([f"rank {', '.join(map(str, inside))}"] if inside else [])])

    return _RANKS.sub(ranks, _GROUP.sub(group, message))


def _collective(call: Collective, scenario: Scenario) -> Collective:
    (root,) = _inside((call.root,), scenario) or (-1,)
    return replace(call, root=root, group=_group(call.group, scenario))


def _group(label: str, scenario: Scenario) -> str:
    """The label of a group as the members see it. For a group with outsiders, who never come, only members count."""
    if label == group_label(scenario.members, _NAME):
        return DEFAULT
    members = members_of(label, scenario.outsiders + scenario.world_size)
    name = WHOLE_WORLD if label == DEFAULT else label.partition(", ")[2]
    return group_label(_inside(members, scenario), name)


def _inside(ranks: Iterable[int], scenario: Scenario) -> tuple[int, ...]:
    members = scenario.members
    return tuple(members.index(rank) for rank in ranks if rank in members)


def _passage(passage: Passage, scenario: Scenario) -> Passage:
    members = _inside(passage.members, scenario)
    return replace(passage, collective=_collective(passage.collective, scenario), members=members)


def _hazard(hazard: Hazard, scenario: Scenario) -> Hazard:
    collective = _collective(hazard.collective, scenario)
    return replace(hazard, rank=scenario.members.index(hazard.rank), collective=collective)
