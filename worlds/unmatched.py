"""Collectives and messages that an example launched without their other side, although no rank failed.

The next example on the same connections would meet them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from lockstep.worlds.blame import apart
from lockstep.worlds.contract import MESSAGES, Collective, Outcome, members_of

UNMATCHED = "an unmatched"  # how it begins what it tells


def also_unmatched(outcome: Outcome) -> Outcome:
    """The outcome; each rank that launched an unmatched collective or message reports it as left behind.

    If a rank has failed, the outcome stays as it is: the others then stop in the middle anyway.
    """
    if any(report.error for report in outcome):
        return outcome
    collectives = [report.collectives for report in outcome]
    alone = {*_collectives(collectives), *_messages(collectives)}
    if not alone:
        return outcome
    return tuple(
        replace(report, left=(*report.left, *sorted(f"{UNMATCHED} {what}" for who, what in alone if who == rank)))
        for rank, report in enumerate(outcome)
    )


def _collectives(by_rank: Sequence[Sequence[Collective]]) -> set[tuple[int, str]]:
    """Rank and operation of each collective that is not the same on all members of its group, or not there on all."""
    sequences: dict[str, dict[int, list[Collective]]] = {}
    for rank, calls in enumerate(by_rank):
        for call in calls:
            if call.operation not in MESSAGES:
                sequences.setdefault(call.group, {}).setdefault(rank, []).append(call)
    found = set()
    for group, of in sequences.items():
        members = members_of(group, len(by_rank))
        by_member = [of.get(member, []) for member in members]
        if all(calls == by_member[0] for calls in by_member):  # nearly always, and sooner known
            continue
        for calls in zip_longest(*by_member):
            there = {member: call for member, call in zip(members, calls, strict=True) if call is not None}
            first = next(iter(there.values()))
            if len(there) < len(members) or any(apart(str(first), str(call)) for call in there.values()):
                found |= {(member, call.operation) for member, call in there.items()}
    return found


def _messages(by_rank: Sequence[Sequence[Collective]]) -> set[tuple[int, str]]:
    """Rank and operation of each message that more were sent of than received, or the other way round: between two
    ranks, with one tag, in one group.
    """
    sent: Counter[tuple[str, int, int, int]] = Counter()  # by group, destination, tag and source; less those received
    from_any: Counter[tuple[str, int, int]] = Counter()  # received from whoever sends
    for rank, calls in enumerate(by_rank):
        for call in calls:
            if call.operation == "send":
                sent[call.group, call.root, call.tag, rank] += 1
            elif call.operation == "recv" and call.root >= 0:
                sent[call.group, rank, call.tag, call.root] -= 1
            elif call.operation == "recv":
                from_any[call.group, rank, call.tag] += 1
    found = set()
    for (group, destination, tag, source), more in sent.items():
        taken = max(0, min(more, from_any[group, destination, tag]))
        from_any[group, destination, tag] -= taken
        if more > taken:
            found.add((source, "send"))
        elif more < 0:
            found.add((destination, "recv"))
    return found | {(destination, "recv") for (_, destination, _), more in from_any.items() if more}
