"""Check that ranks call the same collectives, and that each message has a sender and a receiver."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lockstep.properties.trial import Run
from lockstep.properties.verdict import Crashes
from lockstep.worlds.contract import DEFAULT, MESSAGES, Collective, members_of


def same_collectives(run: Run, headline: str) -> None:
    """Check that in each used group, all members issued the same collectives in the same order, and messages match."""
    if same_collectives in run.right:
        return
    for group in dict.fromkeys([DEFAULT, *(call.group for calls in run.collectives for call in calls)]):
        asked = {
            rank: [call for call in run.collectives[rank] if call.group == group]
            for rank in members_of(group, len(run.collectives))
        }
        of = "" if group == DEFAULT else f" of the {group} group"
        first, *others = (
            (f"rank {rank}", [call for call in calls if call.operation not in MESSAGES])
            for rank, calls in asked.items()
        )
        for other in others:
            _same_sequence(run, headline, of, first, other)
        _messages_meet(run, headline, asked)
    run.right[same_collectives] = True


def _same_sequence(
    run: Run, headline: str, of: str, one: tuple[str, Sequence[Collective]], other: tuple[str, Sequence[Collective]]
) -> None:
    (first, theirs), (second, ours) = one, other
    for number, (left, right) in enumerate(zip(theirs, ours, strict=False), 1):
        if left.agreed() != right.agreed():
            words = f"{headline} Collective {number}{of} is {left} on {first} and {right} on {second}."
            raise run.broken(Crashes, words)
    if len(theirs) != len(ours):
        words = f"{headline} There are {len(theirs)} collectives{of} on {first} and {len(ours)} on {second}."
        raise run.broken(Crashes, words)


def _messages_meet(run: Run, headline: str, asked: Mapping[int, Sequence[Collective]]) -> None:
    """Compare the counts of messages from each rank to each other. Tags are not compared, as NCCL ignores them."""
    sent = Counter((rank, call.root) for rank, calls in asked.items() for call in calls if call.operation == "send")
    taken = Counter((call.root, rank) for rank, calls in asked.items() for call in calls if call.operation == "recv")
    for receiver in asked:
        from_any = taken[-1, receiver]
        spare = {sender: sent[sender, receiver] - taken[sender, receiver] for sender in asked}
        words = ""
        for sender, count in spare.items():
            if count < 0:
                words = f"Rank {receiver} expects {_so_many(-count)} from rank {sender} that it never sends."
        if not words and sum(spare.values()) > from_any:
            sender = max(spare, key=lambda rank: spare[rank])
            count = min(spare[sender], sum(spare.values()) - from_any)
            words = f"Rank {sender} sends {_so_many(count)} that rank {receiver} never receives."
        if not words and sum(spare.values()) < from_any:
            words = f"Rank {receiver} expects {_so_many(from_any - sum(spare.values()))} that nobody sends."
        if words:
            raise run.broken(Crashes, f"{headline} {words}")


def _so_many(messages: int) -> str:
    return "a message" if messages == 1 else f"{messages} messages"
